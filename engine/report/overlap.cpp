// SPDX-License-Identifier: Apache-2.0
// Interval arithmetic over the spans of a step.

#include "engine/report/overlap.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/check.h"

namespace slipstream {

double share_of(double part, double whole) { return whole > 0 ? std::clamp(part / whole, 0.0, 1.0) : 0; }

double hidden_share(double comm, double exposed) { return share_of(comm - exposed, comm); }

std::vector<int64_t> shrunk_to(std::vector<int64_t> parts, int64_t total) {
  double sum = 0;
  for (int64_t& part : parts) sum += static_cast<double>(part = std::max<int64_t>(part, 0));
  double seen = 0;
  int64_t given = 0;
  for (int64_t& part : parts) {
    if (part == 0) continue;
    seen += static_cast<double>(part);
    const int64_t until = std::llround(static_cast<double>(total) * (seen / sum));
    part = until - given;
    given = until;
  }
  return parts;
}

int64_t union_ns(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.begin_ns < b.begin_ns; });
  int64_t total = 0, end = INT64_MIN;
  for (const Interval& interval : intervals) {
    const int64_t begin = std::max(interval.begin_ns, end);
    if (interval.end_ns > begin) total += interval.end_ns - begin;
    end = std::max(end, interval.end_ns);
  }
  return total;
}

int64_t common_ns(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::vector<Interval> both = a;
  both.insert(both.end(), b.begin(), b.end());
  return union_ns(a) + union_ns(b) - union_ns(std::move(both));
}

namespace {

bool is_communication(ChannelKind kind) { return kind == ChannelKind::communication || kind == ChannelKind::stages; }

}  // namespace

OverlapMeter::OverlapMeter(std::vector<ChannelKind> kinds) : kinds_(std::move(kinds)) {}

void OverlapMeter::add(uint32_t channel, const std::vector<Span>& spans) {
  SLIP_ASSERT(channel < kinds_.size());
  for (const Span& span : spans) {
    Spans& step = steps_[span.step];
    const ChannelKind kind = kinds_[channel];
    const bool is_work = span.kind == Span::Kind::work;
    if (is_communication(kind)) {
      if (is_work) step.tasks.push_back({channel, span.item, span.begin_ns, span.end_ns, span.ready_ns, span.link_ns});
      continue;
    }
    if (kind == ChannelKind::compute) {
      step.ready_ns += span.ready_ns;
      step.ready_between_ns += span.ready_before_ns;
      step.asleep_ns += span.asleep_ns;
    }
    if (is_work) {
      const int64_t away_ns = span.ready_ns + (kind == ChannelKind::compute ? span.asleep_ns : 0);
      if (step.items.empty() || step.items.back().item != span.item) step.items.push_back({.item = span.item});
      step.items.back().work_ns += span.end_ns - span.begin_ns;
      step.items.back().away_ns += away_ns;
      step.works.push_back({kind, channel, span.item, span.item, span.begin_ns, span.end_ns});
    } else if (kind == ChannelKind::compute || kind == ChannelKind::local) {
      (kind == ChannelKind::compute ? step.waits : step.local_waits[channel])
          .push_back({.awaited = span.awaited, .item = span.item, .begin_ns = span.begin_ns, .end_ns = span.end_ns});
    }
  }
}

StepTimes OverlapMeter::take(uint32_t step, bool next_begins) {
  const auto found = steps_.find(step);
  SLIP_ASSERT(found != steps_.end());
  Spans spans = std::move(found->second);
  steps_.erase(found);
  const auto busy_of = [](const Spans& of) {
    std::vector<Interval> busy;
    for (const WorkTime& work : of.works)
      if (work.kind == ChannelKind::compute) busy.push_back({work.begin_ns, work.end_ns});
    SLIP_ASSERT(!busy.empty());
    return busy;
  };
  const std::vector<Interval> busy = busy_of(spans);
  StepTimes times;
  times.step = step;
  times.next_begins = next_begins;
  times.begin_ns = busy.front().begin_ns;
  int64_t end_ns = busy.back().end_ns;
  if (next_begins) {
    const Spans& next = steps_.at(step + 1);
    end_ns = busy_of(next).front().begin_ns;
    // The next step waits before its first work, and this step causes that wait.
    for (const Exposure& wait : next.waits)
      if (wait.end_ns <= end_ns) spans.waits.push_back(wait);
    for (const TaskTime& task : next.tasks)
      if (task.begin_ns < end_ns) times.after.push_back(task);
  }
  const bool follows = last_ && last_->next_begins && last_->step + 1 == step;
  times.unawaited_ns = unawaited_ns(spans, busy, follows ? last_work_end_ns_ : times.begin_ns);
  times.asleep_ns = spans.asleep_ns;
  times.ready_ns = spans.ready_ns;
  times.ready_between_ns = spans.ready_between_ns;
  last_work_end_ns_ = busy.back().end_ns;
  // A wait for local work counts as a wait for that work's own waits, for as long as they last.
  std::vector<Exposure> behind;
  for (const Exposure& wait : spans.waits)
    for (const Exposure& other : spans.local_waits[static_cast<uint32_t>(wait.awaited >> 32)])
      behind.push_back({.awaited = other.awaited,
                        .item = wait.item,
                        .begin_ns = std::max(wait.begin_ns, other.begin_ns),
                        .end_ns = std::min(wait.end_ns, other.end_ns)});
  spans.waits.insert(spans.waits.end(), behind.begin(), behind.end());
  std::stable_sort(spans.waits.begin(), spans.waits.end(),
                   [](const Exposure& a, const Exposure& b) { return a.begin_ns < b.begin_ns; });
  std::sort(spans.tasks.begin(), spans.tasks.end(), [](const TaskTime& a, const TaskTime& b) {
    return std::pair(a.channel, a.begin_ns) < std::pair(b.channel, b.begin_ns);
  });
  times.tasks = std::move(spans.tasks);
  times.step_ns = end_ns - times.begin_ns;
  times.compute_ns = union_ns(busy);
  std::stable_sort(spans.works.begin(), spans.works.end(), [](const WorkTime& a, const WorkTime& b) {
    return std::pair(a.channel, a.begin_ns) < std::pair(b.channel, b.begin_ns);
  });
  for (const WorkTime& work : spans.works)
    if (!times.works.empty() && times.works.back().channel == work.channel && times.works.back().item == work.item &&
        work.begin_ns - times.works.back().end_ns < kAdjacentNs)
      times.works.back().end_ns = work.end_ns;
    else
      times.works.push_back(work);
  std::vector<Interval> exposed, input;
  for (Exposure wait : spans.waits) {
    wait.begin_ns = std::max(wait.begin_ns, times.begin_ns);
    wait.end_ns = std::min(wait.end_ns, end_ns);
    if (wait.end_ns <= wait.begin_ns) continue;
    const ChannelKind kind = kinds_[wait.awaited >> 32];
    if (!is_communication(kind) && kind != ChannelKind::input) continue;
    (kind == ChannelKind::input ? input : exposed).push_back({wait.begin_ns, wait.end_ns});
    wait.kind = kind;
    times.exposures.push_back(wait);
  }
  times.exposed_ns = union_ns(exposed);
  times.input_ns = union_ns(input);
  times.other_ns = times.step_ns - times.compute_ns - times.exposed_ns - times.input_ns;
  std::stable_sort(spans.items.begin(), spans.items.end(),
                   [](const ItemTime& a, const ItemTime& b) { return a.item < b.item; });
  for (const ItemTime& part : spans.items) {
    if (times.work_ns.empty() || times.work_ns.back().first != part.item) {
      times.work_ns.emplace_back(part.item, 0);
      times.own_ns.emplace_back(part.item, 0);
    }
    times.work_ns.back().second += part.work_ns;
    times.own_ns.back().second += part.work_ns - part.away_ns;
  }
  std::vector<int64_t> own;
  for (const TaskTime& task : times.tasks) own.push_back(task.begin_ns);
  apply_last_entries(times, own);
  const auto last = std::exchange(last_, std::make_shared<const StepTimes>(times));
  if (follows) times.previous = last;
  return times;
}

int64_t OverlapMeter::unawaited_ns(const Spans& spans, const std::vector<Interval>& busy, int64_t from_ns) {
  const int64_t until_ns = busy.back().end_ns;
  std::vector<Interval> covered;
  const auto cover = [&](const Interval& part) {
    covered.push_back({std::clamp(part.begin_ns, from_ns, until_ns), std::clamp(part.end_ns, from_ns, until_ns)});
  };
  for (const Interval& work : busy) cover(work);
  for (const Exposure& wait : spans.waits) cover({wait.begin_ns, wait.end_ns});
  return until_ns - from_ns - union_ns(std::move(covered));
}

void apply_last_entries(StepTimes& times, const std::vector<int64_t>& last_entries) {
  SLIP_ASSERT(last_entries.size() == times.tasks.size());
  std::vector<Interval> entered, together;
  for (size_t i = 0; i < times.tasks.size(); ++i) {
    const TaskTime& task = times.tasks[i];
    entered.push_back({task.begin_ns, task.end_ns});
    together.push_back({std::clamp(last_entries[i], task.begin_ns, task.end_ns), task.end_ns});
  }
  std::vector<Interval> busy;
  for (const WorkTime& work : times.works)
    if (work.kind == ChannelKind::compute) busy.push_back({work.begin_ns, work.end_ns});
  times.comm_ns = union_ns(together);
  times.hidden_ns = common_ns(together, busy);
  times.skew_ns = union_ns(entered) - times.comm_ns;
}

}  // namespace slipstream

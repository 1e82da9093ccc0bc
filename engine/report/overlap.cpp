// SPDX-License-Identifier: Apache-2.0
// Interval arithmetic over the spans of a step.

#include "engine/report/overlap.h"

#include <algorithm>

#include "engine/base/check.h"

namespace slipstream {

double hidden_share(double comm, double exposed) { return comm > 0 ? std::clamp(1 - exposed / comm, 0.0, 1.0) : 0; }

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

namespace {

bool is_communication(ChannelKind kind) { return kind == ChannelKind::communication || kind == ChannelKind::stages; }

/// Time of `wait` in which nothing travelled on the channel, because the awaited task had not begun on some stage.
int64_t bubble_of(const Exposure& wait, const StepTimes& times, const std::vector<Interval>& together) {
  if (wait.task == SIZE_MAX) return wait.end_ns - wait.begin_ns;
  const int64_t end_ns = std::min(wait.end_ns, together[wait.task].begin_ns);
  if (end_ns <= wait.begin_ns) return 0;
  std::vector<Interval> travelling;
  for (size_t i = 0; i < together.size(); ++i)
    if (times.tasks[i].channel == times.tasks[wait.task].channel)
      travelling.push_back({std::clamp(together[i].begin_ns, wait.begin_ns, end_ns),
                            std::clamp(together[i].end_ns, wait.begin_ns, end_ns)});
  return end_ns - wait.begin_ns - union_ns(std::move(travelling));
}

}  // namespace

OverlapMeter::OverlapMeter(std::vector<ChannelKind> kinds) : kinds_(std::move(kinds)) {}

void OverlapMeter::add(uint32_t channel, const std::vector<Span>& spans) {
  SLIP_ASSERT(channel < kinds_.size());
  for (const Span& span : spans) {
    Spans& step = steps_[span.step];
    if (span.kind == Span::Kind::work && !is_communication(kinds_[channel]))
      step.work_ns[span.item] += span.end_ns - span.begin_ns;
    if (kinds_[channel] == ChannelKind::local && span.kind == Span::Kind::wait)
      step.local_waits[channel].push_back(
          {.awaited = span.awaited, .item = span.item, .begin_ns = span.begin_ns, .end_ns = span.end_ns});
    if (kinds_[channel] == ChannelKind::compute) {
      if (span.kind == Span::Kind::work)
        step.works.push_back({span.begin_ns, span.end_ns});
      else
        step.waits.push_back(
            {.awaited = span.awaited, .item = span.item, .begin_ns = span.begin_ns, .end_ns = span.end_ns});
    } else if (is_communication(kinds_[channel]) && span.kind == Span::Kind::work) {
      step.tasks.push_back({channel, span.item, span.begin_ns, span.end_ns});
    }
  }
}

StepTimes OverlapMeter::take(uint32_t step, bool next_begins) {
  const auto found = steps_.find(step);
  SLIP_ASSERT(found != steps_.end() && !found->second.works.empty());
  Spans spans = std::move(found->second);
  steps_.erase(found);
  StepTimes times;
  times.step = step;
  times.begin_ns = spans.works.front().begin_ns;
  int64_t end_ns = spans.works.back().end_ns;
  if (next_begins) {
    const Spans& next = steps_.at(step + 1);
    SLIP_ASSERT(!next.works.empty());
    end_ns = next.works.front().begin_ns;
    // The next step waits before its first work; this step causes that wait.
    for (const Exposure& wait : next.waits)
      if (wait.end_ns <= end_ns) spans.waits.push_back(wait);
  }
  // A wait for local work is a wait for that work's own waits, for as long as they last.
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
  times.compute_ns = union_ns(spans.works);
  std::vector<Interval> exposed, input;
  for (Exposure wait : spans.waits) {
    wait.begin_ns = std::max(wait.begin_ns, times.begin_ns);
    wait.end_ns = std::min(wait.end_ns, end_ns);
    if (wait.end_ns <= wait.begin_ns) continue;
    const ChannelKind kind = kinds_[wait.awaited >> 32];
    if (!is_communication(kind) && kind != ChannelKind::input) continue;
    (kind == ChannelKind::input ? input : exposed).push_back({wait.begin_ns, wait.end_ns});
    wait.kind = kind;
    const auto of_this_step = std::find_if(times.tasks.begin(), times.tasks.end(), [&](const TaskTime& task) {
      return kind == ChannelKind::stages && task.channel == wait.awaited >> 32 &&
             task.item == static_cast<uint32_t>(wait.awaited) && task.end_ns > wait.begin_ns;
    });
    if (of_this_step != times.tasks.end()) wait.task = static_cast<size_t>(of_this_step - times.tasks.begin());
    times.exposures.push_back(wait);
  }
  times.exposed_ns = union_ns(exposed);
  times.input_ns = union_ns(input);
  times.other_ns = times.step_ns - times.compute_ns - times.exposed_ns - times.input_ns;
  times.work_ns.assign(spans.work_ns.begin(), spans.work_ns.end());
  std::vector<int64_t> own;
  for (const TaskTime& task : times.tasks) own.push_back(task.begin_ns);
  apply_last_entries(times, own);
  return times;
}

void apply_last_entries(StepTimes& times, const std::vector<int64_t>& last_entries) {
  SLIP_ASSERT(last_entries.size() == times.tasks.size());
  std::vector<Interval> entered, together;
  for (size_t i = 0; i < times.tasks.size(); ++i) {
    const TaskTime& task = times.tasks[i];
    entered.push_back({task.begin_ns, task.end_ns});
    together.push_back({std::clamp(last_entries[i], task.begin_ns, task.end_ns), task.end_ns});
  }
  times.comm_ns = union_ns(together);
  times.skew_ns = union_ns(entered) - times.comm_ns;
  times.exposed_ns += times.bubble_ns;
  times.bubble_ns = 0;
  for (Exposure& wait : times.exposures) {
    if (wait.kind != ChannelKind::stages) continue;
    wait.bubble_ns = bubble_of(wait, times, together);
    times.bubble_ns += wait.bubble_ns;
  }
  times.exposed_ns -= times.bubble_ns;
}

}  // namespace slipstream

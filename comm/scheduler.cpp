// SPDX-License-Identifier: Apache-2.0
// Walks through the host order. The plan determines everything that a task needs, so issuing is a sequence of waits, a
// launch and a record.

#include "comm/scheduler.h"

#include <algorithm>

#include "comm/rehearse/seams.h"
#include "comm/wiring.h"
#include "engine/base/check.h"
#include "engine/device/clock.h"

namespace slipstream::comm {

Scheduler::Scheduler(const Job& job, Device& device, std::vector<Stream*> streams)
    : job_(job), device_(device), streams_(std::move(streams)) {
  SLIP_ASSERT(streams_.size() == job.channels.size());
  communications_before_.assign(job.channels.size(), 0);
}

void Scheduler::bind(const Plan& plan, const BoundWorks& works, uint32_t first_item) {
  SLIP_ASSERT(works.size() == plan.size() && plan.order.size() == plan.size());
  Bound& bound = bound_[&plan];
  bound.plan = &plan;
  bound.works = &works;
  bound.first_item = first_item;
  // Events exist for the items that another stream waits for: all tasks, the awaited spine items, and the end of the
  // spine. A seam wait on any other spine item waits for the next recorded one, which completes no earlier.
  bound.communications.assign(job_.channels.size(), 0);
  for (const Task& task : plan.tasks)
    if (is_communication(task.op)) ++bound.communications[task.channel];
  bound.recorded.assign(plan.size(), 0);
  for (ItemId i = 0; i < plan.size(); ++i) {
    if (!plan.is_spine(i)) bound.recorded[i] = 1;
    for (const Point& point : plan[i].after)
      if (plan[point.item].channel != plan[i].channel) bound.recorded[point.item] = 1;
  }
  if (!plan.spine.empty()) bound.recorded[plan.spine.size() - 1] = 1;
  bound.next_recorded.assign(plan.size(), 0);
  std::vector<ItemId> next(job_.channels.size(), 0);
  for (auto i = plan.order.rbegin(); i != plan.order.rend(); ++i) {
    if (bound.recorded[*i]) next[plan[*i].channel] = *i;
    bound.next_recorded[*i] = next[plan[*i].channel];
  }
  for (auto& events : bound.events) {
    events.clear();
    events.resize(plan.size());
    for (ItemId i = 0; i < plan.size(); ++i)
      if (bound.recorded[i]) events[i] = device_.make_event(event_tag(plan[i].channel, first_item + i));
  }
}

Event& Scheduler::event_of(const Run& run, ItemId item) const {
  return *run.bound->events[run.parity][run.bound->next_recorded[item]];
}

Event& Scheduler::end_of(const Plan& plan) {
  Bound& bound = bound_.at(&plan);
  SLIP_ASSERT(bound.runs > 0 && !plan.spine.empty());
  return *bound.events[(bound.runs - 1) % 2][plan.spine.size() - 1];
}

bool Scheduler::ended(const Plan& plan) const {
  const Bound& bound = bound_.at(&plan);
  return bound.runs == 0 || bound.events[(bound.runs - 1) % 2][plan.order.back()]->query();
}

std::string Scheduler::in_flight() const {
  for (const Run& run : history_) {
    const Plan& plan = *run.bound->plan;
    for (ItemId i : plan.order) {
      if (!run.bound->recorded[i] || run.bound->events[run.parity][i]->query()) continue;
      // All items of a replayed run share the event at its end.
      if (run.replayed) return "a step that is replayed as one graph (set device.graph = false to see which task)";
      return fmt::format("{} on channel {}", plan.is_spine(i) ? plan.spine[i].name : (*run.bound->works)[i].name,
                         job_.channels[plan[i].channel].name);
    }
  }
  return {};
}

const Scheduler::Seam& Scheduler::seam_for(const Bound& next) {
  std::vector<const Plan*> key;
  for (const Run& run : history_) key.push_back(run.bound->plan);
  key.push_back(next.plan);
  const auto [found, is_new] = seams_.try_emplace(key);
  if (is_new) {
    key.pop_back();
    for (const SeamWait& wait : link(key, *next.plan, job_.channels))
      found->second.waits.emplace(wait.to, std::make_pair(wait.run, wait.from));
  }
  return found->second;
}

void Scheduler::enter(Bound& bound, uint32_t step, bool is_replayed) {
  constexpr size_t kFlown = 3;
  const std::lock_guard lock(mutex_);
  std::vector<const Plan*> plans;
  for (const Run& run : history_) plans.push_back(run.bound->plan);
  std::deque<Run> kept;
  for (uint32_t i : compact(plans)) kept.push_back(history_[i]);
  history_ = std::move(kept);
  seam_ = &seam_for(bound);
  current_ = {&bound, static_cast<int>(bound.runs % 2), is_replayed};
  cursor_.store(0, std::memory_order_release);
  flown_.push_back({current_, bound.runs++, step});
  if (flown_.size() <= kFlown) return;
  for (size_t c = 0; c < communications_before_.size(); ++c)
    communications_before_[c] += flown_[0].run.bound->communications[c];
  flown_.pop_front();
}

void Scheduler::leave() {
  const std::lock_guard lock(mutex_);
  history_.push_back(current_);
}

void Scheduler::begin(const Plan& plan, const Frame& frame) {
  enter(bound_.at(&plan), frame.step, false);
  issue_tasks(frame);
}

void Scheduler::replayed(const Plan& plan, uint32_t step) {
  enter(bound_.at(&plan), step, true);
  leave();
}

void Scheduler::before(ItemId item, Stream& compute, const Frame& frame) { wait_for_points(item, compute, frame); }

void Scheduler::reached(ItemId item, Stream& compute, const Frame& frame) {
  const Plan& plan = *current_.bound->plan;
  const size_t cursor = cursor_.load(std::memory_order_relaxed);
  SLIP_ASSERT(cursor < plan.order.size() && plan.order[cursor] == item);
  if (current_.bound->recorded[item]) compute.record(event_of(current_, item));
  cursor_.store(cursor + 1, std::memory_order_release);
  issue_tasks(frame);
}

void Scheduler::wait_for_points(ItemId item, Stream& stream, const Frame& frame) {
  const Plan& plan = *current_.bound->plan;
  for (const Point& point : plan[item].after)
    if (plan[point.item].channel != plan[item].channel) stream.wait(event_of(current_, point.item), frame);
  const auto [begin, end] = seam_->waits.equal_range(item);
  for (auto wait = begin; wait != end; ++wait) {
    const auto& [run, from] = wait->second;
    stream.wait(event_of(history_[run], from), frame);
  }
}

void Scheduler::issue_tasks(const Frame& frame) {
  const Plan& plan = *current_.bound->plan;
  size_t cursor = cursor_.load(std::memory_order_relaxed);
  for (; cursor < plan.order.size() && !plan.is_spine(plan.order[cursor]);) {
    const ItemId item = plan.order[cursor];
    Stream& stream = *streams_[plan[item].channel];
    const std::vector<Rebind>& rebinds = plan[item].rebinds;
    const Frame task_frame{.memory = frame.memory,
                           .rebinds = rebinds.data(),
                           .rebind_count = static_cast<uint32_t>(rebinds.size()),
                           .item = current_.bound->first_item + item,
                           .step = frame.step};
    wait_for_points(item, stream, task_frame);
    stream.launch((*current_.bound->works)[item], task_frame);
    stream.record(event_of(current_, item));
    cursor_.store(++cursor, std::memory_order_release);
  }
  if (cursor == plan.order.size()) leave();
}

/// A look at the events of the last runs.
class Scheduler::Look {
 public:
  Look(const Scheduler& scheduler, bool times_events)
      : s_(scheduler), times_events_(times_events), fronts_(s_.streams_.size()) {
    for (size_t f = 0; f < s_.flown_.size(); ++f) {
      const Plan& plan = *run(f).bound->plan;
      for (size_t i = 0; i < plan.order.size(); ++i) {
        Front& front = fronts_[plan[plan.order[i]].channel];
        if (!front.known && !ended(f, plan.order[i], i)) front = {true, f, i};
      }
    }
  }

  FlightChannel channel(ChannelId c) const {
    FlightChannel seen{.name = s_.job_.channels[c].name};
    seen.ended = s_.communications_before_[c];
    const Front& front = fronts_[c];
    const Root held = root(c);
    const int64_t now_ns = monotonic_ns();
    for (size_t f = 0; f < s_.flown_.size() && !seen.next; ++f) {
      const Plan& plan = *run(f).bound->plan;
      for (size_t i = 0; i < plan.order.size() && !seen.next; ++i) {
        const ItemId item = plan.order[i];
        if (plan[item].channel != c || plan.is_spine(item) || !is_communication(plan[item].op)) continue;
        FlightWork work = work_of(f, item);
        if (front.known && (f > front.run || (f == front.run && i >= front.at))) {
          seen.begun = held.known && held.channel == c && held.run == f && held.item == item;
          if (const int64_t ready = seen.begun && times_events_ ? ready_ns(f, item, i) : 0; ready > 0)
            work.seconds_ago = static_cast<double>(now_ns - ready) * 1e-9;
          if (!seen.begun && held.known) hold(held, seen.held_by, seen.held_group);
          seen.next = std::move(work);
          continue;
        }
        ++seen.ended;
        if (times_events_ && is_latest(f))
          work.seconds_ago = static_cast<double>(now_ns - s_.event_of(run(f), item).completed_ns()) * 1e-9;
        seen.latest.push_back(std::move(work));
        if (seen.latest.size() > kLatest) seen.latest.erase(seen.latest.begin());
      }
    }
    return seen;
  }

  /// Finds what the compute stream is at; the result is empty if the stream has nothing to do.
  void compute(std::string& held_by, std::string& held_group) const {
    if (const Root held = root(kComputeChannel); held.known) hold(held, held_by, held_group);
  }

 private:
  static constexpr size_t kLatest = 8;
  /// The first item of a channel that has not ended: position `at` in the order of run `run`.
  struct Front {
    bool known = false;
    size_t run = 0, at = 0;
  };
  struct Root {
    bool known = false;
    ChannelId channel = 0;
    size_t run = 0;
    ItemId item = 0;
  };

  const Run& run(size_t f) const { return s_.flown_[f].run; }
  /// Does no later run use the events of this run?
  bool is_latest(size_t f) const { return run(f).bound->runs - s_.flown_[f].number <= 2; }
  bool ended(size_t f, ItemId item, size_t at) const {
    if (!is_latest(f)) return true;
    const bool issues = f + 1 == s_.flown_.size() && !run(f).replayed;
    return (!issues || at < s_.cursor_.load(std::memory_order_acquire)) && s_.event_of(run(f), item).query();
  }
  bool ended(size_t f, ItemId item) const {
    const std::vector<ItemId>& order = run(f).bound->plan->order;
    return ended(f, item, static_cast<size_t>(std::find(order.begin(), order.end(), item) - order.begin()));
  }
  bool issued(size_t f, size_t at) const {
    return f + 1 < s_.flown_.size() || run(f).replayed || at < s_.cursor_.load(std::memory_order_acquire);
  }

  FlightWork work_of(size_t f, ItemId item) const {
    const Plan& plan = *run(f).bound->plan;
    const Task& task = plan.task(item);
    return {.name = run(f).replayed ? "a task of a step that is replayed as one graph" : task.name,
            .op = name_of(task.op),
            .bytes = bytes_of(task.elems, task.dtype),
            .bucket = task.bucket,
            .step = s_.flown_[f].step};
  }

  /// The item that runs now and that channel `c` waits for, if it waits.
  Root root(ChannelId c) const {
    for (size_t hops = 0; hops <= fronts_.size(); ++hops) {
      const Front& front = fronts_[c];
      if (!front.known || !issued(front.run, front.at)) return {};
      const Run& flown = run(front.run);
      const Plan& plan = *flown.bound->plan;
      const std::optional<ChannelId> next = waits_for(c, front, plan);
      if (!next) return {true, c, front.run, plan.order[front.at]};
      c = *next;
    }
    return {};
  }

  /// The channel whose work the front of `c` waits for.
  std::optional<ChannelId> waits_for(ChannelId c, const Front& front, const Plan& plan) const {
    for (size_t i = front.at; i < plan.order.size(); ++i) {
      const ItemId item = plan.order[i];
      if (plan[item].channel != c) continue;
      for (const Point& point : plan[item].after)
        if (plan[point.item].channel != c && !ended(front.run, point.item)) return plan[point.item].channel;
      if (front.run + 1 == s_.flown_.size() && s_.seam_) {
        const auto [begin, end] = s_.seam_->waits.equal_range(item);
        for (auto wait = begin; wait != end; ++wait) {
          const Run& earlier = s_.history_[wait->second.first];
          if (!s_.event_of(earlier, wait->second.second).query())
            return (*earlier.bound->plan)[wait->second.second].channel;
        }
      }
      if (run(front.run).bound->recorded[item]) break;
    }
    return {};
  }

  /// The time at which everything that a begun item waited for had ended; 0: not known.
  int64_t ready_ns(size_t f, ItemId item, size_t at) const {
    const Plan& plan = *run(f).bound->plan;
    int64_t ready_ns = 0;
    for (const Point& point : plan[item].after)
      ready_ns = std::max(ready_ns, s_.event_of(run(f), point.item).completed_ns());
    for (size_t i = at; i-- > 0;)
      if (plan[plan.order[i]].channel == plan[item].channel)
        return std::max(ready_ns, s_.event_of(run(f), plan.order[i]).completed_ns());
    if (f == 0) return ready_ns;
    const Plan& before = *run(f - 1).bound->plan;
    for (size_t i = before.order.size(); i-- > 0 && is_latest(f - 1);)
      if (before[before.order[i]].channel == plan[item].channel)
        return std::max(ready_ns, s_.event_of(run(f - 1), before.order[i]).completed_ns());
    return ready_ns;
  }

  void hold(const Root& held, std::string& held_by, std::string& held_group) const {
    const Item& item = (*run(held.run).bound->plan)[held.item];
    held_by = fmt::format("{} on channel {}", item.name, s_.job_.channels[held.channel].name);
    held_group = is_communication(item.op) ? group_of(s_.job_, held.channel) : "";
  }

  const Scheduler& s_;
  bool times_events_;
  std::vector<Front> fronts_;  // by channel
};

FlightState Scheduler::flight(bool times_events) const {
  const std::lock_guard lock(mutex_);
  FlightState state;
  if (flown_.empty()) return state;
  const Look look(*this, times_events);
  state.step = flown_.back().step;
  look.compute(state.held_by, state.held_group);
  for (ChannelId c = 0; c < job_.channels.size(); ++c) {
    if (job_.channels[c].axis == Axis::self || job_.mesh.group_size(job_.channels[c].axis) == 1) continue;
    if (std::all_of(bound_.begin(), bound_.end(), [&](const auto& b) { return b.second.communications[c] == 0; }))
      continue;
    state.channels.push_back(look.channel(c));
    state.channels.back().group = group_of(job_, c);
  }
  return state;
}

}  // namespace slipstream::comm

// SPDX-License-Identifier: Apache-2.0
// Walks the host order. The plan fixes everything that a task needs, so issuing is waits, a launch and a record.

#include "comm/scheduler.h"

#include <algorithm>

#include "comm/rehearse/seams.h"
#include "engine/base/check.h"

namespace slipstream::comm {

Scheduler::Scheduler(const Job& job, Device& device, std::vector<Stream*> streams)
    : job_(job), device_(device), streams_(std::move(streams)) {
  SLIP_ASSERT(streams_.size() == job.channels.size());
}

void Scheduler::bind(const Plan& plan, const BoundWorks& works) {
  SLIP_ASSERT(works.size() == plan.size() && plan.order.size() == plan.size());
  Bound& bound = bound_[&plan];
  bound.plan = &plan;
  bound.works = &works;
  // Events exist for items that another stream waits for: all tasks, awaited spine items, and the end of the spine. A
  // seam wait on any other spine item waits for the next recorded one, which completes no earlier.
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
      if (bound.recorded[i]) events[i] = device_.make_event(event_tag(plan[i].channel, i));
  }
}

Event& Scheduler::event_of(const Run& run, ItemId item) {
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

void Scheduler::enter(Bound& bound) {
  std::vector<const Plan*> plans;
  for (const Run& run : history_) plans.push_back(run.bound->plan);
  std::deque<Run> kept;
  for (uint32_t i : compact(plans)) kept.push_back(history_[i]);
  history_ = std::move(kept);
  seam_ = &seam_for(bound);
  current_ = {&bound, static_cast<int>(bound.runs++ % 2)};
}

void Scheduler::begin(const Plan& plan, const Frame& frame) {
  enter(bound_.at(&plan));
  cursor_ = 0;
  issue_tasks(frame);
}

void Scheduler::replayed(const Plan& plan) {
  enter(bound_.at(&plan));
  current_.replayed = true;
  history_.push_back(current_);
}

void Scheduler::before(ItemId item, Stream& compute, const Frame& frame) { wait_for_points(item, compute, frame); }

void Scheduler::reached(ItemId item, Stream& compute, const Frame& frame) {
  const Plan& plan = *current_.bound->plan;
  SLIP_ASSERT(cursor_ < plan.order.size() && plan.order[cursor_] == item);
  if (current_.bound->recorded[item]) compute.record(event_of(current_, item));
  ++cursor_;
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
  for (; cursor_ < plan.order.size() && !plan.is_spine(plan.order[cursor_]); ++cursor_) {
    const ItemId item = plan.order[cursor_];
    Stream& stream = *streams_[plan[item].channel];
    const std::vector<Rebind>& rebinds = plan[item].rebinds;
    const Frame task_frame{.memory = frame.memory,
                           .rebinds = rebinds.data(),
                           .rebind_count = static_cast<uint32_t>(rebinds.size()),
                           .item = item,
                           .step = frame.step};
    wait_for_points(item, stream, task_frame);
    stream.launch((*current_.bound->works)[item], task_frame);
    stream.record(event_of(current_, item));
  }
  if (cursor_ == plan.order.size()) history_.push_back(current_);
}

}  // namespace slipstream::comm

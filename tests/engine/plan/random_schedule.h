// SPDX-License-Identifier: Apache-2.0
#pragma once
// Random legal pipeline schedules, and legality by definition.

#include <algorithm>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "engine/plan/schedules/schedule.h"

namespace slipstream {

/// The passes of a pipeline that have been done, and those that may follow.
class PipelineState {
 public:
  PipelineState(const ScheduleShape& shape, bool splits, const StagePlacement& placement)
      : shape_(shape), splits_(splits), placement_(placement) {}

  /// True if the input of an action exists: the output of the part before it or after it, or of this part's earlier
  /// pass.
  bool may(int stage, const Action& action) const {
    const int part = part_of(stage, action), last = shape_.stages * shape_.virtual_stages - 1;
    switch (action.pass) {
      case Pass::forward:
        return part == 0 || done_.contains({Pass::forward, part - 1, action.micro_batch});
      case Pass::backward:
        return done_.contains({Pass::forward, part, action.micro_batch}) &&
               (part == last || done_.contains({Pass::backward, part + 1, action.micro_batch}));
      case Pass::weight:
        return splits_ && done_.contains({Pass::backward, part, action.micro_batch});
    }
    return false;
  }
  void take(int stage, const Action& action) {
    done_.insert({action.pass, part_of(stage, action), action.micro_batch});
  }
  bool done(int stage, const Action& action) const {
    return done_.contains({action.pass, part_of(stage, action), action.micro_batch});
  }
  size_t count() const { return done_.size(); }
  size_t all() const {
    return static_cast<size_t>((splits_ ? 3 : 2) * shape_.stages * shape_.virtual_stages * shape_.micro_batches);
  }

 private:
  /// By the definition: the chunk-th of the parts on the stage.
  int part_of(int stage, const Action& action) const {
    int part = -1;
    for (int chunk = -1; chunk < action.chunk;) chunk += placement_.stage_of(++part) == stage;
    return part;
  }

  ScheduleShape shape_;
  bool splits_;
  StagePlacement placement_;
  std::set<std::tuple<Pass, int, int>> done_;  // pass, part, micro-batch
};

/// A walk over the ring of stages. It begins on stage 0, rests at times, and visits all stages equally often.
inline StagePlacement random_placement(const ScheduleShape& shape, std::mt19937_64& random) {
  while (true) {
    std::vector<int> stage_of{0}, visits(static_cast<size_t>(shape.stages), 0);
    ++visits[0];
    for (int part = 1; part < shape.stages * shape.virtual_stages; ++part) {
      const int hop = static_cast<int>(random() % 3) - 1;
      stage_of.push_back((stage_of.back() + hop + shape.stages) % shape.stages);
      ++visits[static_cast<size_t>(stage_of.back())];
    }
    if (std::all_of(visits.begin(), visits.end(), [&](int each) { return each == shape.virtual_stages; }))
      return StagePlacement(stage_of);
  }
}

/// A list scheduler with random priorities: any stage takes any action whose input exists, and takes micro-batches in
/// order.
inline PipelineSchedule random_schedule(const ScheduleShape& shape, bool splits, std::mt19937_64& random,
                                        const StagePlacement& placement) {
  PipelineSchedule schedule{.shape = shape, .placement = placement, .splits_backward = splits, .stages = {}};
  schedule.stages.resize(static_cast<size_t>(shape.stages));
  PipelineState state(shape, splits, placement);
  while (state.count() < state.all()) {
    std::vector<std::pair<int, Action>> ready;
    for (int stage = 0; stage < shape.stages; ++stage)
      for (int pass = 0; pass < (splits ? 3 : 2); ++pass)
        for (int chunk = 0; chunk < shape.virtual_stages; ++chunk) {
          Action next{static_cast<Pass>(pass), chunk, 0};
          while (next.micro_batch < shape.micro_batches && state.done(stage, next)) ++next.micro_batch;
          if (next.micro_batch < shape.micro_batches && state.may(stage, next)) ready.emplace_back(stage, next);
        }
    const auto& [stage, action] = ready[random() % ready.size()];
    state.take(stage, action);
    schedule.stages[static_cast<size_t>(stage)].push_back(action);
  }
  return schedule;
}

/// Does the same with parts that go round the stages.
inline PipelineSchedule random_schedule(const ScheduleShape& shape, bool splits, std::mt19937_64& random) {
  return random_schedule(shape, splits, random, StagePlacement::round(shape.stages, shape.virtual_stages));
}

/// Runs the actions of every stage in order, as far as their inputs exist. The schedule is legal if all passes of all
/// micro-batches run once each, and the micro-batches of a chunk in order.
inline bool is_legal(const PipelineSchedule& schedule) {
  PipelineState state(schedule.shape, schedule.splits_backward, schedule.placement);
  std::vector<size_t> at(schedule.stages.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < at.size(); ++s) {
      const auto stage = static_cast<int>(s);
      while (at[s] < schedule.stages[s].size()) {
        const Action& action = schedule.stages[s][at[s]];
        Action before = action;
        if (--before.micro_batch >= 0 && !state.done(stage, before)) return false;
        if (state.done(stage, action)) return false;
        if (!state.may(stage, action)) break;
        state.take(stage, action);
        ++at[s];
        moved = true;
      }
    }
  }
  for (size_t s = 0; s < at.size(); ++s)
    if (at[s] < schedule.stages[s].size()) return false;
  return state.count() == state.all();
}

}  // namespace slipstream

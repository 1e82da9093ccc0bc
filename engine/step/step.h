// SPDX-License-Identifier: Apache-2.0
#pragma once
// Walks the spine of a plan: calls before(item), launches the item's works, calls reached(item).

#include <map>
#include <vector>

#include "engine/plan/job.h"
#include "engine/step/points.h"

namespace slipstream {

/// Works by item, for items that are not pieces of the model. Compute items have an empty entry, or one that replaces
/// the piece's works (paced benchmarks).
using BoundWorks = std::vector<Work>;

class Step {
 public:
  /// Borrows all arguments. `memory` resolves every buffer of the job.
  Step(const Job& job, const Memory& memory, Stream& compute, PointListener& listener);

  /// Borrows `works`, which has one entry per item of `plan`. `first_item` is the number of the plan's first item in
  /// timelines.
  void bind(const Plan& plan, const BoundWorks& works, uint32_t first_item = 0);

  /// Enqueues one run of `plan` and never waits. `step` tags the timeline.
  void run(const Plan& plan, uint32_t step);

 private:
  const Job& job_;
  const Memory& memory_;
  Stream& compute_;
  PointListener& listener_;
  struct Bound {
    const BoundWorks* works = nullptr;
    uint32_t first_item = 0;
  };
  std::map<const Plan*, Bound> bound_;
};

}  // namespace slipstream

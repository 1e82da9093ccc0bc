// SPDX-License-Identifier: Apache-2.0
#pragma once
// The interface from compute to the scheduler of communication: "about to run" and "reached". Nothing else passes
// between them.

#include "engine/device/device.h"
#include "engine/plan/plan.h"

namespace slipstream {

class PointListener {
 public:
  virtual ~PointListener() = default;
  /// Enqueues. Begins a run of `plan` and issues the tasks before its first spine item.
  virtual void begin(const Plan& plan, const Frame& frame) = 0;
  /// Enqueues. `compute` is about to run `item`: makes it wait for the item's points.
  virtual void before(ItemId item, Stream& compute, const Frame& frame) = 0;
  /// Enqueues. All works of `item` are on `compute`: records its point and issues the tasks up to the next spine item.
  virtual void reached(ItemId item, Stream& compute, const Frame& frame) = 0;
};

}  // namespace slipstream

// SPDX-License-Identifier: Apache-2.0
#pragma once
// What compute tells whoever schedules communication: "about to run" and "reached". Nothing else crosses this line.

#include "engine/device/device.h"
#include "engine/plan/plan.h"

namespace slipstream {

class PointListener {
 public:
  virtual ~PointListener() = default;
  /// Enqueues. A run of `plan` begins; tasks before its first spine item are issued.
  virtual void begin(const Plan& plan, const Frame& frame) = 0;
  /// Enqueues. `compute` is about to run `item`: makes it wait for the item's points.
  virtual void before(ItemId item, Stream& compute, const Frame& frame) = 0;
  /// Enqueues. Everything of `item` is on `compute`: records its point, issues the tasks up to the next spine item.
  virtual void reached(ItemId item, Stream& compute, const Frame& frame) = 0;
};

}  // namespace slipstream

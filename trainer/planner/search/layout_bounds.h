// SPDX-License-Identifier: Apache-2.0
#pragma once
// Lower bounds of the step time and the memory of a layout, computed from a model of three layers instead of a plan.

#include <cstdint>
#include <map>
#include <memory>

#include "engine/config/machine.h"
#include "engine/config/resolve.h"

namespace slipstream::planner {

/// The part of a layout that takes this long by itself.
enum class Limit : uint8_t { compute, bubble, tensor, states };
const char* name_of(Limit limit);

struct LayoutBound {
  int64_t step_ns = 0;
  Limit limit = Limit::compute;
  int64_t expected_ns = 0;   // a guess and not a bound: messages of tensor ranks wait for the last chunk of tokens
  int64_t memory_bytes = 0;  // for the largest stage
};

/// Bounds of many layouts. Layouts that share a rank's works share their costs. Only one thread may use it.
class LayoutBounds {
 public:
  explicit LayoutBounds(Machine machine);
  ~LayoutBounds();

  /// Returns a bound: no rehearsal of this configuration takes less time, and no plan of it less memory. The time is
  /// the longest of
  ///   the fill and drain of the stages before one, and all of its own works (no step overlaps the next there);
  ///   the bytes of tensor ranks;
  ///   the gradients and parameters on the port of a rank.
  /// Throws: ConfigError for layouts that no plan has.
  LayoutBound bound(const ResolvedConfig& config);

 private:
  struct Works;
  const Works& works_of(const ResolvedConfig& config);

  Machine machine_;
  std::map<RunConfig, std::unique_ptr<Works>> known_;
};

}  // namespace slipstream::planner

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Why communication is exposed in a rehearsed step, and which change of the run file would shorten the step.

#include <cstdint>
#include <string>
#include <vector>

#include "planner/planned.h"

namespace slipstream::planner {

/// The task that compute waits for longest, over the rehearsed steps of the first rank.
struct LargestExposed {
  std::string task;           // empty: compute waits for no communication
  std::string channel;        // on which it travels
  double step_ms = 0;         // of a mean step, all waits for it together
  int64_t under_last_of = 1;  // micro-batches, of which the last alone has communication to hide
  bool crosses_nodes = false;
};
/// Pure.
LargestExposed largest_exposed(const Planned& planned, const comm::Rehearsal& rehearsal);

/// One setting of the run file changed, and the step rehearsed with it.
struct Alternative {
  std::string set;  // as --set takes it
  double step_ms = 0;
  double exposed_ms = 0;
  int64_t global_batch = 0;  // sequences
};
/// Single changes that are legal, fit in memory and take less time per sequence, by 0.5 % at least; the best first.
/// Empty for plans of so many items that rehearsing takes long. Reads the run file again, blocks.
std::vector<Alternative> faster_alternatives(const Planned& planned, const comm::Rehearsal& rehearsal);

}  // namespace slipstream::planner

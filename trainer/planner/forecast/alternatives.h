// SPDX-License-Identifier: Apache-2.0
#pragma once
// The cause of exposed communication in a rehearsed step, and settings that would shorten the step.

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/planner/forecast/planned.h"

namespace slipstream::planner {

/// The channel for which compute waits longest on the first rank, and the task of it that compute waits for most. Times
/// are means of a step.
struct LargestExposed {
  std::string channel;  // empty: compute waits for no communication
  double exposed_ms = 0;
  double busy_ms = 0;
  std::string task;
  double task_ms = 0;         // the exposed time of the task
  int64_t under_last_of = 1;  // the micro-batches of a step, only the last of which can hide the channel's tasks
  bool crosses_nodes = false;
};
/// Pure.
LargestExposed largest_exposed(const Planned& planned, const comm::Rehearsal& rehearsal);

/// A change of the run file, with the rehearsed step.
struct Alternative {
  std::vector<std::string> sets;  // arguments of --set
  double step_ms = 0;
  double exposed_ms = 0;
  int64_t global_batch = 0;  // sequences
};
/// Returns legal changes of one setting, or of ZeRO's stage with its shard size, that fit in memory and shorten the
/// time per sequence by at least 0.5 %, the best first. Returns none for plans of more than 50,000 items, whose
/// rehearsals take seconds each. Reads the run file. Blocks.
std::vector<Alternative> faster_alternatives(const Planned& planned, const comm::Rehearsal& rehearsal);

}  // namespace slipstream::planner

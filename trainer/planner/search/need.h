// SPDX-License-Identifier: Apache-2.0
#pragma once
// Answers inverse questions: the smallest bandwidth, memory, micro-batch or number of ranks with which a run reaches a
// goal.

#include <string>
#include <vector>

#include "trainer/planner/forecast/planned.h"

namespace slipstream::planner {

enum class Goal : uint8_t { mfu, step_ms, tokens_per_s };  // at least, at most, at least
enum class Varied : uint8_t { bandwidth, memory, micro_batch, ranks };

struct Need {
  Goal goal = Goal::mfu;
  double value = 0;
};
/// Parses "mfu=0.5", "step_ms=900" or "tokens_per_s=1e6". Throws: ConfigError with the names, or the range.
Need parse_need(const std::string& text);
/// Throws: ConfigError with the names.
Varied parse_varied(const std::string& text);

struct NeedStep {
  std::string value;   // "46 GB/s", "2", ...
  double reached = 0;  // of the goal's quantity
  bool meets = false;
  double step_ms = 0;   // with --vary bandwidth
  std::string problem;  // why it was not rehearsed
};

struct Needed {
  Need need;
  std::string varied;           // "the links between nodes", "train.micro_batch_size", ...
  NeedStep now;                 // the values of the run and machine files
  NeedStep answer;              // the smallest value that meets the goal
  std::vector<NeedStep> tried;  // in the order of the trials
};

/// Bandwidth is that of the links between nodes if the plan uses them, else inside a node, or comm.emulate.bandwidth;
/// it is found within 1 %, in the order of the run's own plan. Memory is the least over the three kinds of
/// recomputation. Micro-batches are powers of two. Ranks are tensor x pipeline x context times powers of two, at the
/// same global batch. Blocks. Reads files. Throws: ConfigError with the best value if none meets the goal.
Needed find_needed(const PlanRequest& request, const Need& need, Varied varied);

/// Prints to stdout.
void print_needed(const Needed& needed);
void print_needed_json(const Needed& needed);

}  // namespace slipstream::planner

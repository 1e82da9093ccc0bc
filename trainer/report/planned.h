// SPDX-License-Identifier: Apache-2.0
#pragma once
// The values of plan.json after checks.

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trainer/report/run_folder.h"

namespace slipstream::report {

struct PlannedItem {
  std::string name, op;
  int64_t channel = 0, micro_batch = -1, begin_ns = 0, ns = 0, sent_bytes = 0, flops = 0, bytes = 0;
};

struct PlannedChannel {
  std::string name, axis;
  int64_t ranks = 1, tasks = 0, sent_bytes = 0, latency_ns = 0;
  double bytes_per_second = 0;  // 0: unlimited
  bool between_nodes = false;
};

struct PlannedStage {
  std::vector<std::pair<std::string, int64_t>> memory_bytes;  // by owner
  std::vector<PlannedChannel> channels;
  std::vector<PlannedItem> items;
  std::vector<std::vector<int64_t>> memory_in_use;  // rows of ns and bytes by owner
};

struct Planned {
  double flops_per_second = 0, bytes_per_second = 0;  // 0: not known
  int64_t launch_ns = 0, ranks_per_node = 0, step_ns = 0;
  std::vector<std::string> owners;
  /// The default is for plans that do not name their axes.
  std::vector<std::string> axes{"data", "context", "pipeline", "tensor"};
  std::vector<std::vector<int64_t>> coordinates;  // by rank and axis
  std::vector<PlannedStage> stages;

  /// Returns the stage of a rank. Without known coordinates it is 0 if there is one stage, else -1.
  int stage_of(int rank) const;
};

/// Returns the values of run.plan. Leaves out a part that differs from what this version writes, and adds a sentence.
/// Pure.
Planned planned_of(const RunFolder& run, Missing& missing);

}  // namespace slipstream::report

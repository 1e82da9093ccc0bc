// SPDX-License-Identifier: Apache-2.0
#pragma once
// plan.json as values, checked.

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
  std::vector<std::string> axes{"data", "context", "pipeline", "tensor"};  // as in plans that do not name them
  std::vector<std::vector<int64_t>> coordinates;                           // by rank and axis
  std::vector<PlannedStage> stages;

  /// The stage of a rank; 0 if its coordinates are not known and there is one stage, else -1.
  int stage_of(int rank) const;
};

/// The values of run.plan. Pure. A part that is not as this version writes it is left out, with a sentence.
Planned planned_of(const RunFolder& run, Missing& missing);

}  // namespace slipstream::report

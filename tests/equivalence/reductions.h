// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared by the tests of the proof of reductions: layouts, the verdict on their plans, and changes of a plan.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "comm/rehearse/reductions.h"
#include "tests/equivalence/table.h"

namespace slipstream::equivalence {

using Jobs = std::vector<std::unique_ptr<Job>>;

inline comm::ReductionReport checked(const Jobs& jobs) {
  std::vector<const Job*> stages;
  for (const auto& job : jobs) stages.push_back(job.get());
  return comm::find_incomplete(stages);
}

inline models::ModelOptions with_tokens(models::ModelOptions model, int64_t tokens) {
  model.tokens = model.context = tokens;
  return model;
}

/// Norms of heads, and key-value heads that several tensor ranks use, are in no row of the table, so these rows have
/// them.
inline std::vector<Layout> layouts() {
  std::vector<Layout> rows = strategies(true);
  for (int tensor : {2, 4})
    for (bool sequence : {false, true})
      rows.push_back({.name = "qwen tensor " + std::to_string(tensor) + (sequence ? ", sequence parallel" : ""),
                      .model = with_tokens(smallest(Family::qwen3), 8),
                      .ranks = 2,
                      .micro_batch = 2,
                      .tensor = tensor,
                      .sequence_parallel = sequence,
                      .micro_batches = 2});
  return rows;
}

/// The same with plans that save and keep.
inline Layout with_copies(Layout layout) {
  layout.save_interval = 2;
  layout.keeps = true;
  return layout;
}

inline std::string first_fault(const comm::ReductionReport& report) {
  return report.found.empty() ? "" : report.found[0].sentence();
}

inline void make_nothing(Task& task) {
  task.op = Op::copy;
  task.reads.clear();
  task.writes.clear();
}

/// Issues a copy of item `id` right after item `earlier`.
inline void repeat(Plan& plan, ItemId id, ItemId earlier) {
  Task again = plan.task(id);
  again.name += ".again";
  plan.tasks.push_back(std::move(again));
  plan.order.insert(std::find(plan.order.begin(), plan.order.end(), earlier) + 1, static_cast<ItemId>(plan.size() - 1));
}

}  // namespace slipstream::equivalence

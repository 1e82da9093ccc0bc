// SPDX-License-Identifier: Apache-2.0
// Copies the state after a step to host memory while the next step runs.

#include <fmt/core.h>

#include "engine/plan/passes/passes.h"
#include "engine/plan/saved_state.h"

namespace slipstream {

void save_pass(const Job& job, Plan& plan) {
  for (size_t b = 0; b < job.storage.size(); ++b) {
    const std::vector<SavedArray> arrays = saved_arrays(job, b);
    for (size_t i = 0; i < arrays.size(); ++i) {
      Task task;
      task.name = fmt::format("save.{}.bucket{}", arrays[i].name, b);
      task.channel = job.channel(Role::save);
      task.op = Op::snapshot;
      task.bucket = static_cast<int32_t>(b);
      task.reads = {arrays[i].from};
      task.writes = {job.storage[b].snapshots[i]};
      task.cost = {0, 2 * bytes_of(arrays[i].most_elems, arrays[i].dtype)};
      append_task(plan, std::move(task));
    }
  }
}

}  // namespace slipstream

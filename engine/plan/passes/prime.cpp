// SPDX-License-Identifier: Apache-2.0
// The plan that runs once, before the first step. It stages the first batch and gathers parameters that travel encoded,
// so that every rank begins with the weights that a step would have given it.

#include <algorithm>
#include <map>

#include "engine/plan/passes/passes.h"

namespace slipstream {

void prime_pass(const Job& job, const std::vector<Point>& gathered, Plan& plan) {
  std::map<ItemId, ItemId> copies;  // by task of the training plan
  const auto copy = [&](ItemId id) {
    Task task = job.train().task(id);
    std::vector<Point> after;
    for (const Point& point : task.after)
      if (const auto found = copies.find(point.item); found != copies.end()) after.push_back({found->second});
    task.after = std::move(after);
    if (job.options.double_buffer)
      exchange_weights(job, task);  // the first step reads the copy that other steps read before it
    copies[id] = static_cast<ItemId>(plan.tasks.size());
    plan.tasks.push_back(std::move(task));
  };
  for (ItemId id = static_cast<ItemId>(job.train().spine.size()); id < job.train().size(); ++id) {
    const bool gathers = std::find(gathered.begin(), gathered.end(), Point{id}) != gathered.end();
    const auto encodes = [&] {
      return job.placement_of(static_cast<size_t>(job.train()[id].bucket)).gathers_encoded();
    };
    if (job.train()[id].op == Op::load || (gathers && encodes())) copy(id);
  }
}

}  // namespace slipstream

// SPDX-License-Identifier: Apache-2.0
// Compares a text across all ranks.

#include "trainer/runtime/rank/agreement.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "engine/base/check.h"

namespace slipstream::runtime {
namespace {

/// Returns the first differing lines of two texts. A line is empty if its text ends there.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream lines_a(a), lines_b(b);
  while (true) {
    std::string of_a, of_b;
    const bool more = static_cast<bool>(std::getline(lines_a, of_a)) | static_cast<bool>(std::getline(lines_b, of_b));
    if (of_a != of_b || !more) return {of_a, of_b};
  }
}

/// Returns the values of order_hash() as text, one line per item.
std::string plan_lines(const planner::FinishedJob& finished) {
  std::string lines;
  for (size_t s = 0; s < finished.stages.size(); ++s) {
    const Job& job = *finished.stages[s];
    for (const auto& [kind, cadence, plan] : job.plans)
      for (const ItemId id : plan.order) {
        const Item& item = plan[id];
        lines +=
            fmt::format("{} of {} on stage {}, channel {}", item.name, plan.kind, s, job.channels[item.channel].name);
        if (is_communication(item.op))
          lines += fmt::format(": {} of {} {}", name_of(item.op), plan.task(id).elems, name_of(plan.task(id).dtype));
        lines += '\n';
      }
  }
  return lines;
}

}  // namespace

void require_same_plan(World& world, const planner::FinishedJob& finished) {
  const std::string hash = fmt::format("{:016x}", finished.proof.order_hash);
  const std::vector<std::string> hashes = world.all_gather(hash);
  const auto other = std::find_if(hashes.begin(), hashes.end(), [&](const auto& each) { return each != hashes[0]; });
  if (other == hashes.end()) return;
  // Only two ranks send their plans, which may have a hundred thousand items.
  const auto rank = static_cast<int>(other - hashes.begin());
  const bool sends = world.rank() == 0 || world.rank() == rank;
  const std::vector<std::string> lines = world.all_gather(sends ? plan_lines(finished) : "");
  world.together([&] {
    const auto [theirs, ours] = first_difference(lines[static_cast<size_t>(rank)], lines[0]);
    throw ConfigError(
        "[train] rank {} and rank 0 disagree on the plan ({} and {}; hashes {} and {}). Give all hosts the same files, "
        "such as pipeline.schedule_file and device.machine.",
        rank, theirs, ours, *other, hashes[0]);
  });
}

void require_same(World& world, const std::string& what, const std::string& value, const std::string& remedy) {
  const std::vector<std::string> values = world.all_gather(value);
  world.together([&] {
    for (size_t r = 1; r < values.size(); ++r)
      if (values[r] != values[0]) {
        const auto [theirs, ours] = first_difference(values[r], values[0]);
        throw ConfigError("[train] rank {} and rank 0 disagree on the {} ({} and {}). {}", r, what, theirs, ours,
                          remedy);
      }
  });
}

}  // namespace slipstream::runtime

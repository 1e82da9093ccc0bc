// SPDX-License-Identifier: Apache-2.0
// Assigns the longest processing time first.

#include "engine/plan/owners.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace slipstream {

std::vector<int> owners_of(std::span<const int64_t> costs, std::vector<int64_t>& totals) {
  std::vector<size_t> order(costs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return costs[a] > costs[b]; });
  std::vector<int64_t> loads(totals.size(), 0);
  std::vector<int> owners(costs.size());
  for (size_t item : order) {
    size_t least = 0;
    for (size_t owner = 1; owner < loads.size(); ++owner)
      if (std::tie(loads[owner], totals[owner]) < std::tie(loads[least], totals[least])) least = owner;
    owners[item] = static_cast<int>(least);
    loads[least] += costs[item];
    totals[least] += costs[item];
  }
  return owners;
}

}  // namespace slipstream

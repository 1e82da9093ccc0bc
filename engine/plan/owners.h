// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shares indivisible work among ranks by its cost.

#include <cstdint>
#include <span>
#include <vector>

namespace slipstream {

/// Returns the owner of each item. The most expensive item is assigned first, and each item goes to the owner with the
/// least work so far. The largest owner has at most 4/3 - 1/(3 owners) of the least possible work (Graham 1969, "Bounds
/// on multiprocessing timing anomalies"). Owners with equal work take turns by `totals`, the work of earlier calls, to
/// which this call adds. Otherwise pure.
std::vector<int> owners_of(std::span<const int64_t> costs, std::vector<int64_t>& totals);

}  // namespace slipstream

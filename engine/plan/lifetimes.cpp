// SPDX-License-Identifier: Apache-2.0
// Chooses slots by age, and positions by first fit.

#include "engine/plan/lifetimes.h"

#include <algorithm>

namespace slipstream {

int most_alive(std::span<const Lifetime> lives) {
  std::ptrdiff_t most = 0;  // the maximum is reached at some first use
  for (const Lifetime& life : lives)
    most = std::max(most, std::count_if(lives.begin(), lives.end(), [&](const Lifetime& other) {
                      return other.first_use <= life.first_use && life.first_use <= other.last_use;
                    }));
  return static_cast<int>(most);
}

Slots::Lease Slots::lease(int64_t unit, Position last_use) {
  const auto is_it = [&](const std::optional<Tenant>& tenant) { return tenant && tenant->unit == unit; };
  auto slot = std::find_if(tenants_.begin(), tenants_.end(), is_it);
  Lease lease;
  if (slot == tenants_.end()) {
    slot = std::min_element(tenants_.begin(), tenants_.end(), [](const auto& a, const auto& b) {
      return !b ? false : !a || a->last_use < b->last_use;  // a slot that was never used comes first
    });
    lease.moved_in = true;
    lease.previous = *slot;
  }
  lease.slot = static_cast<int>(slot - tenants_.begin());
  *slot = Tenant{unit, last_use};
  return lease;
}

int64_t pack(std::vector<Packed>& buffers) {
  std::stable_sort(buffers.begin(), buffers.end(),
                   [](const Packed& a, const Packed& b) { return a.size_bytes > b.size_bytes; });
  const auto meet = [](const Packed& a, const Packed& b) {
    return std::any_of(a.lives.begin(), a.lives.end(), [&](const Lifetime& life) {
      return std::any_of(b.lives.begin(), b.lives.end(), [&](const Lifetime& other) { return life.meets(other); });
    });
  };
  int64_t total = 0;
  for (size_t i = 0; i < buffers.size(); ++i) {
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (size_t other = 0; other < i; ++other)
      if (meet(buffers[i], buffers[other]))
        taken.push_back({buffers[other].begin_bytes, buffers[other].begin_bytes + buffers[other].size_bytes});
    std::sort(taken.begin(), taken.end());
    int64_t at = 0;
    for (const auto& [begin, end] : taken) {
      if (at + buffers[i].size_bytes <= begin) break;
      at = std::max(at, end);
    }
    buffers[i].begin_bytes = at;
    total = std::max(total, at + buffers[i].size_bytes);
  }
  return total;
}

}  // namespace slipstream

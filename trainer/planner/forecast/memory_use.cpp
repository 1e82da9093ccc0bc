// SPDX-License-Identifier: Apache-2.0
// For every piece of a buffer, finds the stretches of a step that end in a read.

#include "trainer/planner/forecast/plan_record.h"

#include <algorithm>
#include <map>

namespace slipstream::planner {
namespace {

struct Access {
  size_t position = 0;  // in Plan::order
  int64_t begin_bytes = 0, end_bytes = 0;
  bool reads = false;
};

/// Adds what [begin, end) of a buffer of `owner` holds. Each of `accesses` touches all of it, and they are in order. An
/// access that reads and writes counts as a read.
void add_piece(const std::vector<const Access*>& accesses, int64_t size_bytes, size_t owner,
               std::vector<std::array<int64_t, kOwners>>& change, size_t positions) {
  const auto hold = [&](size_t from, size_t to) {  // both ends are included
    change[from][owner] += size_bytes;
    change[to + 1][owner] -= size_bytes;
  };
  if (accesses.empty()) return hold(0, positions - 1);
  // Between one position and the next one, a read by any access of a position needs the bytes.
  std::vector<std::pair<size_t, bool>> stops;
  for (const Access* access : accesses) {
    if (stops.empty() || stops.back().first != access->position) stops.emplace_back(access->position, false);
    stops.back().second = stops.back().second || access->reads;
  }
  // The first position of the stretch that ends at stop i belongs to the previous stretch, unless that one is empty.
  for (size_t i = 0; i < stops.size(); ++i) {
    const auto [position, reads] = stops[i];
    const bool held_before = reads;
    const bool held_after = stops[(i + 1) % stops.size()].second;
    const size_t before = i == 0 ? 0 : stops[i - 1].first + 1;
    if (held_before && before < position) hold(before, position - 1);
    hold(position, position);
    if (i + 1 == stops.size() && held_after && position + 1 < positions) hold(position + 1, positions - 1);
  }
}

}  // namespace

std::vector<std::array<int64_t, kOwners>> memory_in_use(const Job& job) {
  const Plan& plan = job.train();
  const size_t positions = plan.order.size();
  if (positions == 0) return {};
  std::map<BufferId, std::vector<Access>> by_buffer;
  for (size_t position = 0; position < positions; ++position) {
    const Item& item = plan[plan.order[position]];
    for (const Slice& slice : item.reads)
      if (slice.size_bytes > 0)
        by_buffer[slice.buffer].push_back({position, slice.begin_bytes, slice.end_bytes(), true});
    for (const Slice& slice : item.writes)
      if (slice.size_bytes > 0)
        by_buffer[slice.buffer].push_back({position, slice.begin_bytes, slice.end_bytes(), false});
  }
  std::vector<std::array<int64_t, kOwners>> change(positions + 1);
  for (BufferId buffer = 0; buffer < job.buffers.size(); ++buffer) {
    const BufferSpec& spec = job.buffers[buffer];
    if (spec.is_view) continue;
    const int64_t total_bytes = job.buffers.instances(buffer) * job.buffers.stride_bytes(buffer);
    const auto owner = static_cast<size_t>(spec.owner);
    const std::vector<Access>& accesses = by_buffer[buffer];
    std::vector<int64_t> cuts = {0, total_bytes};
    for (const Access& access : accesses)
      for (int64_t at : {access.begin_bytes, access.end_bytes}) cuts.push_back(std::clamp<int64_t>(at, 0, total_bytes));
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    // The accesses of a piece are in order, because each access is added in turn to the pieces that it covers.
    std::vector<std::vector<const Access*>> pieces(cuts.size());
    for (const Access& access : accesses) {
      const auto first = std::lower_bound(cuts.begin(), cuts.end(), access.begin_bytes);
      for (auto cut = first; cut != cuts.end() && *cut < access.end_bytes; ++cut)
        pieces[static_cast<size_t>(cut - cuts.begin())].push_back(&access);
    }
    for (size_t i = 0; i + 1 < cuts.size(); ++i) add_piece(pieces[i], cuts[i + 1] - cuts[i], owner, change, positions);
  }
  std::vector<std::array<int64_t, kOwners>> in_use(positions);
  std::array<int64_t, kOwners> now{};
  for (size_t position = 0; position < positions; ++position) {
    for (size_t owner = 0; owner < kOwners; ++owner) now[owner] += change[position][owner];
    in_use[position] = now;
  }
  return in_use;
}

}  // namespace slipstream::planner

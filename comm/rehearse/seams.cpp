// SPDX-License-Identifier: Apache-2.0
// Walks runs in host order with vector clocks and last accesses, and adds the missing waits between runs.

#include "comm/rehearse/seams.h"

#include <algorithm>
#include <set>

#include "comm/rehearse/clocks.h"

namespace slipstream::comm {
namespace {

/// The runs so far, and the waits of the run that was added last.
class Linker {
 public:
  explicit Linker(size_t channels) : clocks_(channels) {}

  std::vector<SeamWait> add(const Plan& plan) {
    require_finished(plan);
    const auto first_node = static_cast<uint32_t>(clocks_.size());
    const uint32_t run = runs_++;
    std::vector<uint32_t> node_of(plan.size());
    std::vector<SeamWait> waits;
    std::vector<uint32_t> wanted;
    for (ItemId id : plan.order) {
      const Item& item = plan[id];
      const uint32_t node = node_of[id] = clocks_.begin(item.channel);
      origin_.push_back({run, id});
      for (const Point& point : item.after) clocks_.wait(node, node_of[point.item]);

      wanted.clear();
      auto want = [&](uint32_t earlier, bool, int64_t, int64_t) {
        if (earlier < first_node) wanted.push_back(earlier);
      };
      for (const Slice& slice : item.reads) accesses_.conflicts(slice, false, want);
      for (const Slice& slice : item.writes) accesses_.conflicts(slice, true, want);
      // The latest one comes first, because it may imply the others, but never the reverse.
      std::sort(wanted.begin(), wanted.end(), std::greater<>());
      for (uint32_t earlier : wanted) {
        if (clocks_.ordered(earlier, node)) continue;
        clocks_.wait(node, earlier);
        waits.push_back({origin_[earlier].first, origin_[earlier].second, id});
      }
      for (const Slice& slice : item.reads) accesses_.record(slice, false, node, item.channel);
      for (const Slice& slice : item.writes) accesses_.record(slice, true, node, item.channel);
    }
    return waits;
  }

 private:
  Clocks clocks_;
  AccessMap accesses_;
  std::vector<std::pair<uint32_t, ItemId>> origin_;  // of each node: its run and item
  uint32_t runs_ = 0;
};

}  // namespace

std::vector<SeamWait> link(std::span<const Plan* const> history, const Plan& next,
                           const std::vector<Channel>& channels) {
  Linker linker(channels.size());
  for (const Plan* plan : history) linker.add(*plan);
  return linker.add(next);
}

std::vector<std::vector<SeamWait>> link_all(std::span<const Plan* const> runs, const std::vector<Channel>& channels) {
  Linker linker(channels.size());
  std::vector<std::vector<SeamWait>> seams;
  seams.reserve(runs.size());
  for (const Plan* plan : runs) seams.push_back(linker.add(*plan));
  return seams;
}

std::vector<uint32_t> compact(std::span<const Plan* const> history) {
  constexpr size_t kRepeats = 3;
  constexpr size_t kRuns = 6;
  std::vector<uint32_t> kept;  // the newest first
  std::set<const Plan*> seen;
  size_t repeats = 0;
  size_t recent = 0;
  for (size_t i = history.size(); i-- > 0;) {
    repeats = i + 1 < history.size() && history[i + 1] == history[i] ? repeats + 1 : 1;
    const bool is_last_of_its_plan = seen.insert(history[i]).second;
    const bool is_recent = repeats <= kRepeats && recent < kRuns;
    if (!is_last_of_its_plan && !is_recent) continue;
    recent += is_recent;
    kept.push_back(static_cast<uint32_t>(i));
  }
  std::reverse(kept.begin(), kept.end());
  return kept;
}

}  // namespace slipstream::comm

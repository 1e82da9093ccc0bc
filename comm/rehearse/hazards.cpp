// SPDX-License-Identifier: Apache-2.0
// The checker: one walk in host order; an access must be ordered after the last conflicting ones.

#include "comm/rehearse/hazards.h"

#include <optional>
#include <set>

#include <fmt/core.h>

#include "comm/rehearse/clocks.h"

namespace slipstream::comm {
namespace {

/// A wait to leave out.
struct Skip {
  const Plan* plan = nullptr;  // of an Item::after entry
  ItemId item = 0;
  size_t index = 0;
  std::optional<std::pair<size_t, size_t>> seam;  // run, index
};

struct Walk {
  Clocks clocks;
  HazardReport report;
};

class Checker {
 public:
  Checker(const Sequence& sequence, const std::vector<Channel>& channels, const Buffers* buffers, const Skip& skip)
      : sequence_(sequence), channels_(channels), buffers_(buffers), skip_(skip), clocks_(channels.size()) {}

  Walk walk() {
    for (uint32_t run = 0; run < sequence_.runs.size(); ++run) walk_run(run);
    report_.items = static_cast<int64_t>(clocks_.size());
    return {std::move(clocks_), std::move(report_)};
  }

 private:
  void walk_run(uint32_t run) {
    const Plan& plan = *sequence_.runs[run];
    require_finished(plan);
    std::vector<std::vector<uint32_t>> seam_waits(plan.size());
    if (run < sequence_.seams.size())
      for (size_t i = 0; i < sequence_.seams[run].size(); ++i) {
        const SeamWait& wait = sequence_.seams[run][i];
        if (skip_.seam != std::pair<size_t, size_t>(run, i)) seam_waits[wait.to].push_back(node_of_[wait.run][wait.from]);
      }
    node_of_.emplace_back(plan.size());
    for (ItemId id : plan.order) {
      const Item& item = plan[id];
      const uint32_t node = node_of_[run][id] = clocks_.begin(item.channel);
      origin_.push_back({run, id});
      for (size_t i = 0; i < item.after.size(); ++i)
        if (skip_.plan != &plan || skip_.item != id || skip_.index != i)
          clocks_.wait(node, node_of_[run][item.after[i].item]);
      for (uint32_t earlier : seam_waits[id]) clocks_.wait(node, earlier);
      for (const Slice& slice : item.reads) check(slice, false, node);
      for (const Slice& slice : item.writes) check(slice, true, node);
      for (const Slice& slice : item.reads) accesses_.record(slice, false, node, item.channel);
      for (const Slice& slice : item.writes) accesses_.record(slice, true, node, item.channel);
    }
  }

  void check(const Slice& slice, bool writes, uint32_t node) {
    accesses_.conflicts(slice, writes, [&](uint32_t earlier, bool earlier_writes, int64_t begin, int64_t end) {
      if (clocks_.ordered(earlier, node)) return;
      ++report_.count;
      if (report_.hazards.size() >= kHazardsKept) return;
      const auto [earlier_run, earlier_id] = origin_[earlier];
      const auto [later_run, later_id] = origin_[node];
      report_.hazards.push_back({(*sequence_.runs[earlier_run])[earlier_id].name,
                                 (*sequence_.runs[later_run])[later_id].name, earlier_run, later_run,
                                 channels_[clocks_.channel(earlier)].name, channels_[clocks_.channel(node)].name,
                                 earlier_writes, writes,
                                 buffers_ ? (*buffers_)[slice.buffer].name : fmt::format("buffer {}", slice.buffer),
                                 begin, end});
    });
  }

  const Sequence& sequence_;
  const std::vector<Channel>& channels_;
  const Buffers* buffers_;
  const Skip& skip_;
  Clocks clocks_;
  AccessMap accesses_;
  HazardReport report_;
  std::vector<std::vector<uint32_t>> node_of_;       // [run][item]
  std::vector<std::pair<uint32_t, ItemId>> origin_;  // of each node
};

Walk walk(const Sequence& sequence, const std::vector<Channel>& channels, const Buffers* buffers, const Skip& skip) {
  return Checker(sequence, channels, buffers, skip).walk();
}

}  // namespace

std::string Hazard::sentence() const {
  return fmt::format("{} (channel {}, run {}) {} {} bytes {}..{} while {} (channel {}, run {}) may still be {} them: add a "
                     "wait of {} for {}.", later, later_channel, later_run, later_writes ? "writes" : "reads", buffer,
                     begin_bytes, end_bytes, earlier, earlier_channel, earlier_run,
                     earlier_writes ? "writing" : "reading", later, earlier);
}

HazardReport find_hazards(const Sequence& sequence, const std::vector<Channel>& channels, const Buffers* buffers) {
  return walk(sequence, channels, buffers, {}).report;
}

Mutations mutate_waits(const Sequence& sequence, const std::vector<Channel>& channels, const Buffers* buffers) {
  const Clocks reference = walk(sequence, channels, buffers, {}).clocks;
  Mutations result;
  auto judge = [&](const Skip& skip, const std::string& later, const std::string& earlier) {
    ++result.waits;
    const Walk mutant = walk(sequence, channels, buffers, skip);
    if (mutant.report.count > 0) {
      ++result.caught;
    } else if (mutant.clocks == reference) {
      ++result.redundant;
      result.redundant_names.push_back(later + " <- " + earlier);
    } else {
      ++result.missed;
      result.missed_names.push_back(later + " <- " + earlier);
    }
  };

  std::set<const Plan*> seen;
  for (const Plan* plan : sequence.runs) {
    if (!seen.insert(plan).second) continue;
    for (ItemId id = 0; id < plan->size(); ++id)
      for (size_t i = 0; i < (*plan)[id].after.size(); ++i)
        judge({plan, id, i, {}}, (*plan)[id].name, (*plan)[(*plan)[id].after[i].item].name);
  }
  for (size_t run = 0; run < sequence.seams.size(); ++run)
    for (size_t i = 0; i < sequence.seams[run].size(); ++i) {
      const SeamWait& wait = sequence.seams[run][i];
      judge({nullptr, 0, 0, std::pair(run, i)}, (*sequence.runs[run])[wait.to].name,
            (*sequence.runs[wait.run])[wait.from].name);
    }
  return result;
}

}  // namespace slipstream::comm

// SPDX-License-Identifier: Apache-2.0
// The checker walks once in host order. An access must come after the last accesses that conflict with it.

#include "comm/rehearse/hazards.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <fmt/core.h>

#include "comm/rehearse/clocks.h"

namespace slipstream::comm {
namespace {

/// A wait to remove, or to move to the previous item.
struct Change {
  Mutation mutation = Mutation::deleted;
  const Plan* plan = nullptr;  // the plan of an Item::after entry
  ItemId item = 0;
  size_t index = 0;
  std::optional<std::pair<size_t, size_t>> seam;  // run, index
};

struct Walk {
  Clocks clocks;
  HazardReport report;
};

std::string name_of_buffer(const Buffers* buffers, const Slice& slice) {
  return buffers ? (*buffers)[slice.buffer].name : fmt::format("buffer {}", slice.buffer);
}

class Checker {
 public:
  Checker(const Sequence& sequence, const std::vector<Channel>& channels, const Buffers* buffers, const Change& change)
      : sequence_(sequence),
        channels_(channels),
        buffers_(buffers),
        change_(change),
        clocks_(channels.size()),
        on_channel_(channels.size()) {}

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
        seam_waits[wait.to].push_back(
            changed(node_of_[wait.run][wait.from], change_.seam == std::pair<size_t, size_t>(run, i)));
      }
    node_of_.emplace_back(plan.size());
    for (ItemId id : plan.order) {
      const Item& item = plan[id];
      const uint32_t node = node_of_[run][id] = clocks_.begin(item.channel);
      origin_.push_back({run, id});
      on_channel_[item.channel].push_back(node);
      for (size_t i = 0; i < item.after.size(); ++i)
        wait(node, changed(node_of_[run][item.after[i].item],
                           change_.plan == &plan && change_.item == id && change_.index == i));
      for (uint32_t earlier : seam_waits[id]) wait(node, earlier);
      for (const Slice& slice : item.reads) check(slice, false, node);
      for (const Slice& slice : item.writes) check(slice, true, node);
      for (const Slice& slice : item.reads) accesses_.record(slice, false, node, item.channel);
      for (const Slice& slice : item.writes) accesses_.record(slice, true, node, item.channel);
    }
  }

  static constexpr uint32_t kNoItem = UINT32_MAX;
  void wait(uint32_t node, uint32_t earlier) {
    if (earlier != kNoItem) clocks_.wait(node, earlier);
  }
  /// The node to which a wait for `earlier` refers after the mutation.
  uint32_t changed(uint32_t earlier, bool is_hit) const {
    if (!is_hit) return earlier;
    const uint32_t position = clocks_.position(earlier);
    return change_.mutation == Mutation::deleted || position == 1 ? kNoItem
                                                                  : on_channel_[clocks_.channel(earlier)][position - 2];
  }

  const std::string& name(uint32_t node) const {
    return (*sequence_.runs[origin_[node].first])[origin_[node].second].name;
  }

  /// The first node from `node` on, on its channel and in its run, for which other channels can wait (see
  /// Scheduler::bind).
  uint32_t recorded_from(uint32_t node) const {
    const auto [run, id] = origin_[node];
    const Plan& plan = *sequence_.runs[run];
    if (!plan.is_spine(id)) return node;
    for (ItemId later = id; later < plan.spine.size(); ++later) {
      if (later + 1 == plan.spine.size()) return node_of_[run][later];
      for (ItemId other = 0; other < plan.size(); ++other)
        for (const Point& point : plan[other].after)
          if (point.item == later && !plan.is_spine(other)) return node_of_[run][later];
    }
    return node;
  }

  void check(const Slice& slice, bool writes, uint32_t node) {
    accesses_.conflicts(slice, writes, [&](uint32_t earlier, bool earlier_writes, int64_t begin, int64_t end) {
      if (clocks_.ordered(earlier, node)) return;
      ++report_.count;
      if (report_.hazards.size() >= kHazardsKept) return;
      const ChannelId channel = clocks_.channel(earlier);
      const uint32_t complete = clocks_.complete(node, channel);
      report_.hazards.push_back({.earlier = name(earlier),
                                 .later = name(node),
                                 .earlier_run = origin_[earlier].first,
                                 .later_run = origin_[node].first,
                                 .earlier_channel = channels_[channel].name,
                                 .later_channel = channels_[clocks_.channel(node)].name,
                                 .earlier_writes = earlier_writes,
                                 .later_writes = writes,
                                 .buffer = name_of_buffer(buffers_, slice),
                                 .begin_bytes = begin,
                                 .end_bytes = end,
                                 .behind = complete > 0 ? name(on_channel_[channel][complete - 1]) : "",
                                 .event = name(recorded_from(earlier))});
    });
  }

  const Sequence& sequence_;
  const std::vector<Channel>& channels_;
  const Buffers* buffers_;
  const Change& change_;
  Clocks clocks_;
  AccessMap accesses_;
  HazardReport report_;
  std::vector<std::vector<uint32_t>> node_of_;       // [run][item]
  std::vector<std::pair<uint32_t, ItemId>> origin_;  // of each node
  std::vector<std::vector<uint32_t>> on_channel_;    // the nodes of each channel, in order
};

Walk walk(const Sequence& sequence, const std::vector<Channel>& channels, const Buffers* buffers,
          const Change& change) {
  return Checker(sequence, channels, buffers, change).walk();
}

/// The order that waits and the spine define alone, whatever the order of the channels.
class DeclaredOrder {
 public:
  explicit DeclaredOrder(const Plan& plan)
      : plan_(plan), spine_before_(plan.size(), -1), spine_after_(plan.size(), kNever), visited_(plan.size(), 0) {
    for (ItemId id : plan.order) {
      if (plan.is_spine(id)) spine_before_[id] = id;
      for (const Point& point : plan[id].after)
        spine_before_[id] = std::max(spine_before_[id], spine_before_[point.item]);
    }
    for (auto id = plan.order.rbegin(); id != plan.order.rend(); ++id) {
      if (plan.is_spine(*id)) spine_after_[*id] = *id;
      for (const Point& point : plan[*id].after)
        spine_after_[point.item] = std::min(spine_after_[point.item], spine_after_[*id]);
    }
  }

  /// Are they ordered through the spine, or through tasks alone?
  bool ordered(ItemId earlier, ItemId later) {
    if (spine_after_[earlier] <= spine_before_[later]) return true;
    ++query_;
    return reaches(later, earlier);
  }

 private:
  static constexpr int64_t kNever = INT64_MAX;

  bool reaches(ItemId from, ItemId to) {
    if (from == to) return true;
    if (plan_.is_spine(from) || std::exchange(visited_[from], query_) == query_) return false;
    return std::any_of(plan_[from].after.begin(), plan_[from].after.end(),
                       [&](const Point& point) { return reaches(point.item, to); });
  }

  const Plan& plan_;
  std::vector<int64_t> spine_before_;  // the last spine item that is complete before an item begins
  std::vector<int64_t> spine_after_;   // the first spine item that waits for an item
  std::vector<uint64_t> visited_;
  uint64_t query_ = 0;
};

}  // namespace

std::string Hazard::sentence() const {
  const auto at = [&](const std::string& name, const std::string& channel, uint32_t run) {
    return fmt::format("{} (channel {}, {} {})", name, channel, counted, run);
  };
  if (by_chance)
    return fmt::format(
        "{} {} {} bytes {}..{} that {} {}, and only the computed order of the plan puts it second. Declare that {} "
        "waits "
        "for {}, or the reverse.",
        at(later, later_channel, later_run), later_writes ? "writes" : "reads", buffer, begin_bytes, end_bytes,
        at(earlier, earlier_channel, earlier_run), earlier_writes ? "writes" : "reads", later, earlier);
  return fmt::format(
      "{} {} {} bytes {}..{} while {} may still be {} them: add a wait of {} for {}. {}; of channel {} it waits for "
      "{}.",
      at(later, later_channel, later_run), later_writes ? "writes" : "reads", buffer, begin_bytes, end_bytes,
      at(earlier, earlier_channel, earlier_run), earlier_writes ? "writing" : "reading", later, earlier,
      event.empty() ? "No event is recorded after it" : "The nearest event is that of " + event, earlier_channel,
      behind.empty() ? "nothing" : "nothing after " + behind);
}

HazardReport find_hazards(const Sequence& sequence, const std::vector<Channel>& channels, const Buffers* buffers) {
  return walk(sequence, channels, buffers, {}).report;
}

HazardReport find_implicit_order(const Plan& plan, const std::vector<Channel>& channels, const Buffers* buffers) {
  require_finished(plan);
  DeclaredOrder declared(plan);
  AccessMap accesses;
  HazardReport report{.items = static_cast<int64_t>(plan.size())};
  for (ItemId id : plan.order) {
    const Item& item = plan[id];
    const auto check = [&](const Slice& slice, bool writes) {
      accesses.conflicts(slice, writes, [&](uint32_t earlier, bool earlier_writes, int64_t begin, int64_t end) {
        if (declared.ordered(earlier, id)) return;
        ++report.count;
        if (report.hazards.size() >= kHazardsKept) return;
        report.hazards.push_back({.earlier = plan[earlier].name,
                                  .later = item.name,
                                  .earlier_channel = channels[plan[earlier].channel].name,
                                  .later_channel = channels[item.channel].name,
                                  .earlier_writes = earlier_writes,
                                  .later_writes = writes,
                                  .buffer = name_of_buffer(buffers, slice),
                                  .begin_bytes = begin,
                                  .end_bytes = end,
                                  .behind = {},
                                  .event = plan[earlier].name,
                                  .by_chance = true});
      });
    };
    for (const Slice& slice : item.reads) check(slice, false);
    for (const Slice& slice : item.writes) check(slice, true);
    // Here every task is a channel of its own, so the last reader of a channel does not stand for the earlier ones.
    const ChannelId own = plan.is_spine(id) ? 0 : id;
    for (const Slice& slice : item.reads) accesses.record(slice, false, id, own);
    for (const Slice& slice : item.writes) accesses.record(slice, true, id, own);
  }
  return report;
}

Mutations& Mutations::operator+=(const Mutations& other) {
  waits += other.waits, caught += other.caught, redundant += other.redundant, missed += other.missed;
  redundant_names.insert(redundant_names.end(), other.redundant_names.begin(), other.redundant_names.end());
  missed_names.insert(missed_names.end(), other.missed_names.begin(), other.missed_names.end());
  return *this;
}

Mutations mutate_waits(const Sequence& sequence, const std::vector<Channel>& channels, const Buffers* buffers,
                       Mutation mutation) {
  const Clocks reference = walk(sequence, channels, buffers, {}).clocks;
  Mutations result;
  auto judge = [&](const Change& change, const std::string& later, const std::string& earlier) {
    ++result.waits;
    const Walk mutant = walk(sequence, channels, buffers, change);
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
        judge({mutation, plan, id, i, {}}, (*plan)[id].name, (*plan)[(*plan)[id].after[i].item].name);
  }
  for (size_t run = 0; run < sequence.seams.size(); ++run)
    for (size_t i = 0; i < sequence.seams[run].size(); ++i) {
      const SeamWait& wait = sequence.seams[run][i];
      judge({mutation, nullptr, 0, 0, std::pair(run, i)}, (*sequence.runs[run])[wait.to].name,
            (*sequence.runs[wait.run])[wait.from].name);
    }
  return result;
}

}  // namespace slipstream::comm

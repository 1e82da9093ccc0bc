// SPDX-License-Identifier: Apache-2.0
#pragma once
// The completion order of the items of one rank: vector clocks over its channels, fed in host order (Fidge, Mattern
// 1988).

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "engine/plan/plan.h"

namespace slipstream::comm {

class Clocks {
 public:
  explicit Clocks(size_t channels) : channels_(channels), tails_(channels, kNone), lengths_(channels, 0) {}

  /// Adds the next item of `channel`, after all earlier ones of that channel. Nodes count from 0 in call order.
  uint32_t begin(ChannelId channel);
  /// Adds a wait of `node`, which is the last one begun on its channel, for `earlier`.
  void wait(uint32_t node, uint32_t earlier);
  /// Pure. Is `earlier` the same as `later`, or complete before `later` begins?
  bool ordered(uint32_t earlier, uint32_t later) const {
    return clocks_[later * channels_ + channel_of_[earlier]] >= position_[earlier];
  }
  ChannelId channel(uint32_t node) const { return channel_of_[node]; }
  /// Pure. The number of items of `channel` that are complete before `node` begins, with `node` itself.
  uint32_t complete(uint32_t node, ChannelId channel) const { return clocks_[node * channels_ + channel]; }
  /// Pure. The position of a node on its channel, from 1.
  uint32_t position(uint32_t node) const { return position_[node]; }
  size_t size() const { return channel_of_.size(); }
  bool operator==(const Clocks& other) const { return clocks_ == other.clocks_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  size_t channels_;
  std::vector<uint32_t> tails_;    // the last node of each channel
  std::vector<uint32_t> lengths_;  // the number of nodes of each channel
  std::vector<ChannelId> channel_of_;
  std::vector<uint32_t> position_;  // on its channel, from 1
  std::vector<uint32_t> clocks_;    // channels_ numbers per node: items of that channel complete before it
};

/// Throws PlanError unless `plan.order` holds every item once, after all items that it waits for.
void require_finished(const Plan& plan);

/// The last accesses to every byte, as an interval map per buffer. Slices may overlap in part.
class AccessMap {
 public:
  /// Calls conflict(earlier node, whether it wrote, begin_bytes, end_bytes) for each earlier access that conflicts with
  /// reading or writing `slice`. Does not change the record.
  template <typename Conflict>
  void conflicts(const Slice& slice, bool writes, Conflict&& conflict) const;
  /// Records an access. A write drops the accesses that it must be ordered after; a read replaces one of the same
  /// channel.
  void record(const Slice& slice, bool writes, uint32_t node, ChannelId channel);

 private:
  struct Segment {
    int64_t end_bytes = 0;
    uint32_t writer = UINT32_MAX;
    std::vector<std::pair<ChannelId, uint32_t>> readers;  // the last reader of each channel
  };
  using Segments = std::map<int64_t, Segment>;  // by begin_bytes; they are disjoint

  static void split(Segments& segments, int64_t at_bytes);
  std::vector<Segments> buffers_;
};

template <typename Conflict>
void AccessMap::conflicts(const Slice& slice, bool writes, Conflict&& conflict) const {
  if (slice.buffer >= buffers_.size() || slice.size_bytes <= 0) return;
  const Segments& segments = buffers_[slice.buffer];
  auto at = segments.upper_bound(slice.begin_bytes);
  if (at != segments.begin()) --at;
  for (; at != segments.end() && at->first < slice.end_bytes(); ++at) {
    const int64_t begin = std::max(at->first, slice.begin_bytes);
    const int64_t end = std::min(at->second.end_bytes, slice.end_bytes());
    if (begin >= end) continue;
    if (at->second.writer != UINT32_MAX) conflict(at->second.writer, true, begin, end);
    if (writes)
      for (const auto& [channel, reader] : at->second.readers) conflict(reader, false, begin, end);
  }
}

}  // namespace slipstream::comm

// SPDX-License-Identifier: Apache-2.0
// Vector clocks in one flat array, and the interval map of last accesses.

#include "comm/rehearse/clocks.h"

#include "engine/base/check.h"

namespace slipstream::comm {

uint32_t Clocks::begin(ChannelId channel) {
  const auto node = static_cast<uint32_t>(channel_of_.size());
  clocks_.resize(clocks_.size() + channels_, 0);
  if (const uint32_t tail = tails_[channel]; tail != kNone)
    std::copy_n(clocks_.begin() + static_cast<int64_t>(tail * channels_), channels_,
                clocks_.begin() + static_cast<int64_t>(node * channels_));
  channel_of_.push_back(channel);
  position_.push_back(++lengths_[channel]);
  clocks_[node * channels_ + channel] = position_.back();
  tails_[channel] = node;
  return node;
}

void Clocks::wait(uint32_t node, uint32_t earlier) {
  for (size_t c = 0; c < channels_; ++c)
    clocks_[node * channels_ + c] = std::max(clocks_[node * channels_ + c], clocks_[earlier * channels_ + c]);
}

void require_finished(const Plan& plan) {
  if (plan.order.size() != plan.size())
    throw PlanError("[plan] {} has {} items, but its host order has {}. Call finish() first.", plan.kind, plan.size(),
                    plan.order.size());
  std::vector<bool> issued(plan.size(), false);
  for (ItemId id : plan.order) {
    if (id >= plan.size() || issued[id])
      throw PlanError("[plan] the host order of {} names item {} twice or beyond its {} items.", plan.kind, id,
                      plan.size());
    for (const Point& point : plan[id].after)
      if (point.item >= plan.size() || !issued[point.item])
        throw PlanError("[plan] the host order of {} issues {} before {}, which it waits for.", plan.kind,
                        plan[id].name,
                        point.item < plan.size() ? plan[point.item].name : "an item that does not exist");
    issued[id] = true;
  }
}

void AccessMap::split(Segments& segments, int64_t at_bytes) {
  auto after = segments.lower_bound(at_bytes);
  if (after == segments.begin()) return;
  auto before = std::prev(after);
  if (before->second.end_bytes <= at_bytes) return;
  segments.emplace_hint(after, at_bytes, before->second);
  before->second.end_bytes = at_bytes;
}

void AccessMap::record(const Slice& slice, bool writes, uint32_t node, ChannelId channel) {
  if (slice.size_bytes <= 0) return;
  if (slice.buffer >= buffers_.size()) buffers_.resize(slice.buffer + 1);
  Segments& segments = buffers_[slice.buffer];
  auto at = segments.lower_bound(slice.begin_bytes);
  // Most accesses repeat the bytes of an earlier one. Then the segment stays, with its memory.
  if (at == segments.end() || at->first != slice.begin_bytes || at->second.end_bytes != slice.end_bytes()) {
    split(segments, slice.begin_bytes);
    split(segments, slice.end_bytes());
    at = segments.lower_bound(slice.begin_bytes);
  }
  if (writes) {
    if (at == segments.end() || at->first != slice.begin_bytes)
      at = segments.emplace_hint(at, slice.begin_bytes, Segment{});
    at->second.end_bytes = slice.end_bytes();
    at->second.writer = node;
    at->second.readers.clear();
    for (++at; at != segments.end() && at->first < slice.end_bytes();) at = segments.erase(at);
    return;
  }
  for (int64_t covered = slice.begin_bytes; covered < slice.end_bytes(); ++at) {
    if (at == segments.end() || at->first > covered) {
      const int64_t gap_end = at == segments.end() ? slice.end_bytes() : std::min(at->first, slice.end_bytes());
      at = segments.emplace_hint(at, covered, Segment{gap_end, UINT32_MAX, {}});
    }
    Segment& segment = at->second;
    const auto same = std::find_if(segment.readers.begin(), segment.readers.end(),
                                   [channel](const auto& reader) { return reader.first == channel; });
    if (same == segment.readers.end())
      segment.readers.emplace_back(channel, node);
    else
      same->second = node;
    covered = segment.end_bytes;
  }
}

}  // namespace slipstream::comm

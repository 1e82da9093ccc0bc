// SPDX-License-Identifier: Apache-2.0
// The spine: forward and backward of every micro-batch in order, with the accesses of each item resolved.

#include <algorithm>

#include <fmt/core.h>

#include "engine/plan/passes/passes.h"

namespace slipstream {
namespace {

void add_access(std::vector<Slice>& slices, const Slice& slice) {
  if (slice.size_bytes > 0 && std::find(slices.begin(), slices.end(), slice) == slices.end()) slices.push_back(slice);
}

}  // namespace

SpineItem spine_item(const Job& job, uint32_t piece_index, int micro_batch, const std::string& suffix) {
  const Piece& piece = job.model.pieces[piece_index];
  SpineItem item;
  item.piece = piece_index;
  item.micro_batch = micro_batch;
  item.name = piece.name + (piece.layer >= 0 ? fmt::format(".{}", piece.layer) : "") + suffix;
  for (const Work& work : piece.works) {
    item.cost += work.cost;
    for (const Slice& slice : work.reads) add_access(item.reads, job.buffers.resolve(slice, item.rebinds, micro_batch, item.slot));
    for (const Slice& slice : work.writes) add_access(item.writes, job.buffers.resolve(slice, item.rebinds, micro_batch, item.slot));
  }
  return item;
}

SpineMap spine_pass(const Job& job, Plan& plan) {
  SpineMap map;
  const int micro_batches = job.buffers.micro_batches;
  for (int m = 0; m < micro_batches; ++m) {
    const std::string suffix = micro_batches > 1 ? fmt::format("/{}", m) : "";
    const bool last = m + 1 == micro_batches;
    // The first piece takes the staged batch, all micro-batches of it.
    for (size_t p = m == 0 ? 0 : 1; p < job.model.forward.size(); ++p)
      plan.spine.push_back(spine_item(job, job.model.forward[p], m, suffix));
    map.head = static_cast<ItemId>(plan.spine.size() - 1);
    for (uint32_t piece : job.model.backward) {
      if (last) map.backward.push_back(static_cast<ItemId>(plan.spine.size()));
      plan.spine.push_back(spine_item(job, piece, m, suffix));
    }
  }
  return map;
}

Point append_task(Plan& plan, Task task) {
  plan.tasks.push_back(std::move(task));
  return {kTaskBit + static_cast<ItemId>(plan.tasks.size() - 1)};
}

Point append_local(Plan& plan, bool on_spine, ChannelId channel, Task task) {
  if (!on_spine) {
    task.channel = channel;
    return append_task(plan, std::move(task));
  }
  SpineItem item;
  static_cast<Item&>(item) = std::move(task);
  item.channel = kComputeChannel;
  item.piece = UINT32_MAX;
  plan.spine.push_back(std::move(item));
  return {static_cast<ItemId>(plan.spine.size() - 1)};
}

void seal(Plan& plan) {
  const auto resolve = [&](Point& point) {
    if (point.item & kTaskBit) point.item = static_cast<ItemId>(plan.spine.size()) + (point.item & ~kTaskBit);
  };
  for (ItemId i = 0; i < plan.size(); ++i)
    for (Point& point : plan[i].after) resolve(point);
  for (Task& task : plan.tasks)
    if (task.before) resolve(*task.before);
}

}  // namespace slipstream

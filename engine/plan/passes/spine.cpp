// SPDX-License-Identifier: Apache-2.0
// The spine: forward and backward of every micro-batch in order, with the accesses of each item resolved.

#include <algorithm>

#include <fmt/core.h>

#include "engine/plan/passes/passes.h"
#include "engine/plan/passes/residency.h"

namespace slipstream {
namespace {

void add_access(std::vector<Slice>& slices, const Slice& slice) {
  if (slice.size_bytes > 0 && std::find(slices.begin(), slices.end(), slice) == slices.end()) slices.push_back(slice);
}

void append_piece(const Job& job, uint32_t piece_index, int micro_batch, bool backward, Residency& residency, Plan& plan) {
  const Piece& piece = job.model.pieces[piece_index];
  SpineItem item;
  item.piece = piece_index;
  item.micro_batch = micro_batch;
  item.name = piece.name + (piece.layer >= 0 ? fmt::format(".{}", piece.layer) : "") +
              (job.buffers.micro_batches > 1 ? fmt::format("/{}", micro_batch) : "");
  residency.enter(static_cast<ItemId>(plan.spine.size()), piece, backward, item);
  for (const Work& work : piece.works) {
    item.cost += work.cost;
    for (const Slice& slice : work.reads) add_access(item.reads, job.buffers.resolve(slice, item.rebinds, micro_batch, item.slot));
    for (const Slice& slice : work.writes) add_access(item.writes, job.buffers.resolve(slice, item.rebinds, micro_batch, item.slot));
  }
  plan.spine.push_back(std::move(item));
}

}  // namespace

SpineMap spine_pass(const Job& job, Residency& residency, Plan& plan) {
  SpineMap map;
  for (int m = 0; m < job.buffers.micro_batches; ++m) {
    const bool last = m + 1 == job.buffers.micro_batches;
    // The first piece takes the staged batch, all micro-batches of it.
    for (size_t p = m == 0 ? 0 : 1; p < job.model.forward.size(); ++p)
      append_piece(job, job.model.forward[p], m, false, residency, plan);
    map.head = static_cast<ItemId>(plan.spine.size() - 1);
    for (uint32_t piece : job.model.backward) {
      if (last) map.backward.push_back(static_cast<ItemId>(plan.spine.size()));
      append_piece(job, piece, m, true, residency, plan);
    }
  }
  return map;
}

void evaluate_pass(const Job& job, Plan& plan) {
  Residency residency(job);
  for (uint32_t piece : job.model.evaluate) append_piece(job, piece, 0, false, residency, plan);
  residency.append_tasks(plan, nullptr);
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

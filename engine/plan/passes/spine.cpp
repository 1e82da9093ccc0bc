// SPDX-License-Identifier: Apache-2.0
// Builds the spine: the actions of the schedule in order, piece by piece, with the accesses of each item resolved.

#include <algorithm>

#include <fmt/core.h>

#include "engine/base/check.h"
#include "engine/plan/passes/passes.h"
#include "engine/plan/passes/pipeline_transfers.h"
#include "engine/plan/passes/residency.h"

namespace slipstream {
namespace {

void add_access(std::vector<Slice>& slices, const Slice& slice) {
  if (slice.size_bytes > 0 && std::find(slices.begin(), slices.end(), slice) == slices.end()) slices.push_back(slice);
}

void append_piece(const Job& job, uint32_t piece_index, const Action& action, const std::vector<Rebind>& transfers,
                  Residency& residency, Plan& plan) {
  const Piece& piece = job.model.pieces[piece_index];
  SpineItem item;
  item.piece = piece_index;
  item.micro_batch = action.micro_batch;
  item.slot = action.micro_batch % job.chunks[static_cast<size_t>(action.chunk)].slots;
  item.rebinds = transfers;
  item.name = piece.name + (piece.layer >= 0 ? fmt::format(".{}", piece.layer) : "") +
              (job.buffers.micro_batches > 1 ? fmt::format("/{}", action.micro_batch) : "");
  residency.enter(static_cast<ItemId>(plan.spine.size()), piece, action.pass != Pass::forward, item);
  for (const Work& work : piece.works) {
    item.cost += work.cost;
    for (const Slice& slice : work.reads)
      add_access(item.reads, job.buffers.resolve(slice, item.rebinds, item.micro_batch, item.slot));
    for (const Slice& slice : work.writes)
      add_access(item.writes, job.buffers.resolve(slice, item.rebinds, item.micro_batch, item.slot));
  }
  plan.spine.push_back(std::move(item));
}

bool writes(const SpineItem& item, BufferId buffer) {
  return std::any_of(item.writes.begin(), item.writes.end(),
                     [&](const Slice& slice) { return slice.buffer == buffer; });
}

}  // namespace

SpineMap spine_pass(const Job& job, Residency& residency, PipelineTransfers& transfers, Plan& plan) {
  SpineMap map;
  map.backward.resize(job.model.backward.size());
  const auto position_of = [&](uint32_t piece) {
    return static_cast<size_t>(std::find(job.model.backward.begin(), job.model.backward.end(), piece) -
                               job.model.backward.begin());
  };
  // If the stage reads any of the staged batch, its first item takes the batch, with all micro-batches.
  if (job.takes_batch) append_piece(job, job.model.forward.front(), {}, {}, residency, plan);
  const auto append = [&](size_t u, uint32_t piece) {
    const Action& action = job.actions[u];
    // Micro-batches go in order, so that the entry of the last one remains.
    if (action.pass != Pass::forward) map.backward[position_of(piece)] = static_cast<ItemId>(plan.spine.size());
    append_piece(job, piece, action, transfers.rebinds(u), residency, plan);
    if (writes(plan.spine.back(), job.model.loss)) map.loss = static_cast<ItemId>(plan.spine.size() - 1);
  };
  const auto pieces_of = [&](size_t u) -> const std::vector<uint32_t>& {
    return job.chunks[static_cast<size_t>(job.actions[u].chunk)].pieces(job.actions[u].pass);
  };
  for (size_t u = 0; u < job.actions.size(); ++u) {
    transfers.enter(u, static_cast<ItemId>(plan.spine.size()));
    if (!job.actions[u].paired) {
      for (uint32_t piece : pieces_of(u)) append(u, piece);
      continue;
    }
    SLIP_ASSERT(u + 1 < job.actions.size() && job.mesh.group_size(Axis::pipeline) == 1);
    // Each takes its turn until something travels that also travels at balanced load.
    size_t next[] = {0, 0};
    for (size_t turn = 0; next[0] < pieces_of(u).size() || next[1] < pieces_of(u + 1).size(); turn = 1 - turn)
      for (bool travels = false; !travels && next[turn] < pieces_of(u + turn).size(); ++next[turn]) {
        const uint32_t piece = pieces_of(u + turn)[next[turn]];
        append(u + turn, piece);
        const std::vector<Communication>& communications = job.model.pieces[piece].communications;
        travels = std::any_of(communications.begin(), communications.end(),
                              [](const Communication& c) { return c.route.round == 0; });
      }
    transfers.enter(++u, static_cast<ItemId>(plan.spine.size()));
  }
  return map;
}

void evaluate_pass(const Job& job, Plan& plan) {
  std::vector<Action> actions;
  for (size_t c = 0; c < job.chunks.size(); ++c) actions.push_back({Pass::forward, static_cast<int>(c), 0});
  Residency residency(job);
  PipelineTransfers transfers(job, actions);
  for (size_t u = 0; u < actions.size(); ++u) {
    transfers.enter(u, static_cast<ItemId>(plan.spine.size()));
    for (uint32_t piece : job.chunks[u].evaluate)
      append_piece(job, piece, actions[u], transfers.rebinds(u), residency, plan);
  }
  sublayer_pass(job, plan);
  transfers.append_tasks(plan, static_cast<ItemId>(plan.spine.size()));
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

std::vector<Point> sealed(const Plan& plan, std::vector<Point> points) {
  for (Point& point : points)
    if (point.item & kTaskBit) point.item = static_cast<ItemId>(plan.spine.size()) + (point.item & ~kTaskBit);
  return points;
}

void seal(Plan& plan) {
  for (ItemId i = 0; i < plan.size(); ++i) plan[i].after = sealed(plan, std::move(plan[i].after));
  for (Task& task : plan.tasks)
    if (task.before) task.before = sealed(plan, {*task.before})[0];
}

}  // namespace slipstream

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The passes of the planner. Each appends to a plan; a pass knows other passes' tasks only through its arguments.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/job.h"

namespace slipstream {

/// While passes append, the spine grows: a task's point is kTaskBit + its index until seal() makes it an ItemId.
constexpr ItemId kTaskBit = ItemId{1} << 31;

/// Appends a task and returns its point.
Point append_task(Plan& plan, Task task);
/// Pure. The point of the task that append_task adds next.
inline Point next_task(const Plan& plan) { return {kTaskBit + static_cast<ItemId>(plan.tasks.size())}; }

/// Turns the points of passes into item ids. Call after the last pass; a second call changes nothing.
void seal(Plan& plan);
/// Pure. The same for points that a pass has returned; the spine must be complete.
std::vector<Point> sealed(const Plan& plan, std::vector<Point> points);

/// Tasks that take turns, from `first` to `last`.
struct Turn {
  ItemId ready = 0;  // the spine item that it waits for
  Point first, last;
};

/// Points that the update of a bucket must wait for.
struct Reduced {
  std::vector<Turn> turns, turns_across;    // those that use the encoding buffers, in append order; see passes/wire.h
  std::vector<Turn> reductions;             // of buckets, in append order
  std::vector<std::vector<Point>> buckets;  // per bucket: complete when its gradients are summed over ranks
  std::vector<Point> tied;                  // the embedding's share of a tied table has arrived
};

/// Spine items of the pieces of the last micro-batch.
struct SpineMap {
  std::vector<ItemId> backward;  // per index into ModelSpec::backward
  std::optional<ItemId> loss;    // the loss of the last micro-batch, on the stage that computes it

  Point last() const { return {*std::max_element(backward.begin(), backward.end())}; }
};

class PipelineTransfers;
class Residency;

/// Appends the actions of the stage in the order of its schedule; `residency` has the location of sharded layers,
/// `transfers` that of activations and gradients that cross stages.
SpineMap spine_pass(const Job& job, Residency& residency, PipelineTransfers& transfers, Plan& plan);

/// Communication between pieces (Piece::communications): a task after every item of such a piece, in the item's
/// instances. The first spine item that uses the same memory afterwards waits for it, and so does an earlier task of
/// this pass that uses it. Call when all pieces are on the spine.
void sublayer_pass(const Job& job, Plan& plan);

/// Forward and losses of one micro-batch that the host has written.
void evaluate_pass(const Job& job, Plan& plan);

/// Data parallelism: a collective per bucket when its gradients are ready, and the tied table's second share. With one
/// rank it appends nothing and returns the points of the backward items. With ZeRO the collective is a reduce_scatter,
/// and Residency handles layers that pass through slots.
Reduced data_parallel_pass(const Job& job, const SpineMap& spine, Plan& plan);

/// A table that embedding and head share across stages: the head's share, reduced over data ranks, is sent to the first
/// stage and added to the embedding's, and the sum is sent back. Both copies then receive the same update.
void tied_copies_pass(const Job& job, Reduced& reduced, Plan& plan);

/// Gradient norm and clip factor, then the optimizer per bucket, on the spine or on its own stream. With ZeRO the
/// updated shards are gathered afterwards, in forward order, during the next step's forward, whose readers wait by
/// link(). Returns the points of the tasks that convert updated shards into forward's parameters. `loss`: what a plan
/// that skips waits for before it decides.
std::vector<Point> update_pass(const Job& job, const Reduced& reduced, const std::vector<Point>& loss, Plan& plan);

/// Sums the loss over ranks. Returns the point of the sum; none on one rank.
std::vector<Point> loss_pass(const Job& job, const SpineMap& spine, Plan& plan);

/// Copies the values that the host reads, stages the next batch during this step. The step also ends after `last`.
/// `loss`: the result of loss_pass.
void report_and_input_pass(const Job& job, const std::vector<Point>& loss, const std::vector<Point>& last, Plan& plan);

/// The plan before the first step: the tasks of the finished training plan that must have run for it. `gathered`: the
/// result of update_pass, sealed.
void prime_pass(const Job& job, const std::vector<Point>& gathered, Plan& plan);

/// The copies of what a checkpoint needs to host memory, on a channel of their own: a task for each array of a bucket.
/// They run after a step, beside the next one, whose updates wait by link() for the copies of what they overwrite.
void save_pass(const Job& job, Plan& plan);

/// Exchanges the two copies of the weights in the accesses of `item`.
void exchange_weights(const Job& job, Item& item);

/// Appends local work either to the spine or to `channel`. Returns its point.
Point append_local(Plan& plan, bool on_spine, ChannelId channel, Task task);

}  // namespace slipstream

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The passes of the planner. Each pass appends to a plan, and knows the tasks of other passes only through its
// arguments.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/job.h"

namespace slipstream {

/// The spine grows while passes append. Until seal() makes it an ItemId, the point of a task is kTaskBit + its index.
constexpr ItemId kTaskBit = ItemId{1} << 31;

/// Appends a task and returns its point.
Point append_task(Plan& plan, Task task);
/// Pure. The point of the task that append_task adds next.
inline Point next_task(const Plan& plan) { return {kTaskBit + static_cast<ItemId>(plan.tasks.size())}; }

/// Turns the points of passes into item ids. Must be called after the last pass. A second call changes nothing.
void seal(Plan& plan);
/// Pure. Does the same for points that a pass has returned. The spine must be complete.
std::vector<Point> sealed(const Plan& plan, std::vector<Point> points);

/// Tasks that take turns, from `first` to `last`.
struct Turn {
  ItemId ready = 0;  // the spine item that it waits for
  Point first, last;
};

/// The points that the update of a bucket must wait for.
struct Reduced {
  std::vector<Turn> turns, turns_across;    // those that use the encoding buffers, in append order; see passes/wire.h
  std::vector<Turn> reductions;             // the reductions of buckets, in append order
  std::vector<std::vector<Point>> buckets;  // by bucket: complete when its gradients are summed over ranks
  std::vector<Point> tied;                  // the embedding's share of a tied table has arrived
};

/// The spine items of the pieces of the last micro-batch.
struct SpineMap {
  std::vector<ItemId> backward;  // by index into ModelSpec::backward
  std::optional<ItemId> loss;    // the loss of the last micro-batch, on the stage that computes it

  Point last() const { return {*std::max_element(backward.begin(), backward.end())}; }
};

class PipelineTransfers;
class Residency;

/// Appends the actions of the stage in the order of its schedule. `residency` has the location of sharded layers,
/// `transfers` that of activations and gradients that cross stages.
SpineMap spine_pass(const Job& job, Residency& residency, PipelineTransfers& transfers, Plan& plan);

/// Adds the communication between pieces (Piece::communications): one task after every item of such a piece, in the
/// item's instances. The first spine item that uses the same memory afterwards waits for the task, and so does a later
/// task of this pass that uses it. Must be called when all pieces are on the spine.
void sublayer_pass(const Job& job, Plan& plan);

/// Appends the forward pass and the losses of one micro-batch that the host has written.
void evaluate_pass(const Job& job, Plan& plan);

/// Data parallelism: appends a collective per bucket, which runs when the bucket's gradients are ready, and the second
/// share of the tied table. With one rank it appends nothing and returns the points of the backward items. With ZeRO
/// the collective is a reduce_scatter, and Residency handles layers that pass through slots.
Reduced data_parallel_pass(const Job& job, const SpineMap& spine, Plan& plan);

/// Handles a table that embedding and head share across stages. The head's share, reduced over data ranks, is sent to
/// the first stage and added to the embedding's share, and the sum is sent back. Both copies then receive the same
/// update.
void tied_copies_pass(const Job& job, Reduced& reduced, Plan& plan);

/// Appends the gradient norm and the clip factor, then the optimizer per bucket, on the spine or on its own stream.
/// With ZeRO, the updated shards are gathered afterwards, in forward order, during the next step's forward pass. Its
/// readers wait by link(). Returns the points of the tasks that convert updated shards into the parameters of the
/// forward pass. `loss` has the points that a plan which skips awaits before it decides.
std::vector<Point> update_pass(const Job& job, const Reduced& reduced, const std::vector<Point>& loss, Plan& plan);

/// Sums the loss over ranks. Returns the point of the sum, or none on one rank.
std::vector<Point> loss_pass(const Job& job, const SpineMap& spine, Plan& plan);

/// Copies the values that the host reads, and stages the next batch during this step. The step also ends after `last`.
/// `loss` is the result of loss_pass.
void report_and_input_pass(const Job& job, const std::vector<Point>& loss, const std::vector<Point>& last, Plan& plan);

/// Appends the plan before the first step: those tasks of the finished training plan that must have run before it.
/// `gathered` is the sealed result of update_pass.
void prime_pass(const Job& job, const std::vector<Point>& gathered, Plan& plan);

/// Appends the copies to host memory that a checkpoint needs, on a channel of their own: one task for each array of a
/// bucket. They run after a step and beside the next one, whose updates wait by link() until the data that they
/// overwrite has been copied.
void save_pass(const Job& job, Plan& plan);

/// Exchanges the two copies of the weights in the accesses of `item`.
void exchange_weights(const Job& job, Item& item);

/// Appends local work either to the spine or to `channel`. Returns its point.
Point append_local(Plan& plan, bool on_spine, ChannelId channel, Task task);

}  // namespace slipstream

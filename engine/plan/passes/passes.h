// SPDX-License-Identifier: Apache-2.0
#pragma once
// The passes of the planner. Each appends to a plan; none knows the others' tasks but through what it is handed.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/job.h"

namespace slipstream {

/// While passes append, the spine still grows: a task's point is kTaskBit + its index until seal() makes it an ItemId.
constexpr ItemId kTaskBit = ItemId{1} << 31;

/// Appends a task and returns its point.
Point append_task(Plan& plan, Task task);

/// Turns the points of passes into item ids. Call once, after the last pass.
void seal(Plan& plan);
/// The same of points that a pass has handed out. Pure; the spine must be complete.
std::vector<Point> sealed(const Plan& plan, std::vector<Point> points);

/// A reduction that uses the buffers for what is encoded, from `first` to `last`.
struct Turn {
  ItemId ready = 0;  // the spine item that it waits for
  Point first, last;
};

/// Points that the update of a bucket must wait for.
struct Reduced {
  std::vector<Turn> turns, turns_across;    // in append order; see passes/wire.h
  std::vector<std::vector<Point>> buckets;  // per bucket: complete when its gradients are summed over ranks
  std::vector<Point> tied;                  // the embedding's share of a tied table has arrived
};

/// Where each piece of the last micro-batch went.
struct SpineMap {
  std::vector<ItemId> backward;  // per index into ModelSpec::backward
  std::optional<ItemId> head;    // the losses of the last micro-batch, on the stage that has them

  Point last() const { return {*std::max_element(backward.begin(), backward.end())}; }
};

class PipelineTransfers;
class Residency;

/// The uses of the stage in the order of its schedule; `residency` says where sharded layers are, `hops` where
/// activations and gradients are that cross stages.
SpineMap spine_pass(const Job& job, Residency& residency, PipelineTransfers& transfers, Plan& plan);

/// Communication between pieces (Piece::communications): a task behind every item of such a piece, in the item's
/// instances. The first spine item that touches the same memory afterwards waits for it, and so does a task of this
/// pass that does so earlier. Call when all pieces are on the spine.
void sublayer_pass(const Job& job, Plan& plan);

/// Forward and losses of one micro-batch that the host has put in place.
void evaluate_pass(const Job& job, Plan& plan);

/// Data parallelism: a collective per bucket when its gradients are ready, and the tied table's second share.
/// With one rank it appends nothing and returns the points of the backward items themselves. With ZeRO the collective
/// is a reduce_scatter, and layers that pass through slots are left to Residency.
Reduced data_parallel_pass(const Job& job, const SpineMap& spine, Plan& plan);

/// A table that embedding and head share across stages: the head's share, reduced over data ranks, goes to the first
/// stage, is added to the embedding's, and the sum comes back. Both copies then take the same update.
void tied_copies_pass(const Job& job, Reduced& reduced, Plan& plan);

/// Gradient norm and clip factor, then the optimizer per bucket; on the spine or beside it. With ZeRO the updated
/// shards are gathered afterwards, in forward order, under the next step's forward: whoever reads them waits by link.
/// Returns the points of the tasks that make of updated shards what forward reads.
std::vector<Point> update_pass(const Job& job, const Reduced& reduced, Plan& plan);

/// Sums the loss over ranks, copies what the host reads, stages the next batch under this step. The step ends after
/// `last` too.
void report_and_input_pass(const Job& job, const SpineMap& spine, const std::vector<Point>& last, Plan& plan);

/// The plan of before the first step: the tasks of the finished training plan that must have run for it. `gathered` as
/// update_pass returned it, sealed.
void prime_pass(const Job& job, const std::vector<Point>& gathered, Plan& plan);

/// Exchanges the two copies of the weights in what `item` touches.
void exchange_weights(const Job& job, Item& item);

/// Appends local work either to the spine or to `channel`. Returns its point.
Point append_local(Plan& plan, bool on_spine, ChannelId channel, Task task);

}  // namespace slipstream

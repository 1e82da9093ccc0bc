// SPDX-License-Identifier: Apache-2.0
#pragma once
// Facts about a finished job that slipstream plan prints, and a run at its start.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "trainer/planner/planner.h"

namespace slipstream::planner {

/// Returns a rank's step in issue order, one line per item: channel, operation, elements, sent bytes, and the awaited
/// items outside of its channel's order. Pure.
std::string plan_listing(const Job& job);

/// Returns the largest memory saving of parallel.sequence_parallel on a rank of any stage, or 0 if it is off. Pure.
int64_t saved_by_sequence_parallelism(const JobRequest& request, const FinishedJob& finished);

/// The states of a rank (parameters, gradients, optimizer) as the planner places them, and by the formula of the ZeRO
/// paper (Rajbhandari et al. 2020, figure 1): each parameter has `whole` bytes on every rank and `shared` bytes divided
/// among the ranks.
struct ZeroMemory {
  int stage = 0;
  int ranks = 0;
  int64_t planned_bytes = 0;  // without slots
  /// The part of planned_bytes for a tied embedding and head that stays whole: gradients (stages 2, 3) and parameters
  /// (3).
  int64_t outside_bytes = 0;
  int64_t formula_bytes = 0;
};

/// Returns rows for the stages 0 to 3 (0 and 1 with an optimizer of whole matrices) on 2, 4, 8 and 64 data ranks, one
/// after the other. They are for a rank of the largest pipeline stage, with the run's tensor, pipeline and context
/// ranks. Empty if the model does not fit a layout. Pure.
std::vector<ZeroMemory> zero_memory(const JobRequest& request);

/// A possible stream of the update, with the memory of a rank and the rehearsed step. The rehearsal assumes that a
/// second stream does not slow down the first.
struct UpdateOption {
  std::string name;
  int64_t memory_bytes = 0;  // for the stage with the largest memory
  double step_ms = 0;
  bool is_planned = false;
};
/// Returns the options: on the compute stream, on a stream of its own in place, and on a stream of its own with two
/// copies of the weights (not with stage 3). `planned` is the job of `request` with the rehearsed step
/// `planned_step_ms`. The others use the same launch mode. Pure.
std::vector<UpdateOption> update_options(const JobRequest& request, const FinishedJob& planned, double planned_step_ms);

/// Returns remarks for the user, one line each: settings without effect, and decisions of the planner (tensor groups
/// across nodes, the accumulation of ZeRO-2, buckets that overlap.bucket_size does not cut, the partition of layers
/// that do not divide evenly). Pure.
std::vector<std::string> remarks(const ResolvedConfig& config, const Machine& machine, const FinishedJob& finished);

/// The bytes that one rank sends for gradients and parameters in a step of the training plan, and the theoretical bytes
/// for the whole model. The latter are those of Placement::transfers(), where a reduce-scatter and an all-gather over n
/// ranks send (n-1)/n of the elements, and an all-reduce twice that. A split tied table (docs/notes/0003) sends its two
/// shares separately: rows, or the table once more.
struct WireBytes {
  int64_t sent = 0;
  int64_t theory = 0;
};
WireBytes wire_bytes_of_step(const Job& job);

/// Returns the ranks by axis, as plan --json and run.json have them. Pure.
Json layout_json(const MeshSizes& sizes);

/// Returns the number of experts of a rank, and how rows travel, with the reason; empty if no ranks divide experts.
/// Pure.
std::string experts_line(const ResolvedConfig& config);

/// Returns "1f1b over 4 stages of 3 + 3 + 3 + 3 layers, 8 micro-batches: stages idle 37% of a step's compute", and
/// advice if there are too few micro-batches. Pure.
std::string schedule_line(const RunConfig& config, const std::vector<std::shared_ptr<const Job>>& stages,
                          const Played& played);

}  // namespace slipstream::planner

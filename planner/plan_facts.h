// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is said of a finished job: by slipstream plan, and by whoever starts a run.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "planner/planner.h"

namespace slipstream::planner {

/// A step as a rank issues it, one line for an item: channel, what it does, elements and bytes it sends, and for whom
/// it waits beside its channel's order. Pure.
std::string plan_listing(const Job& job);

/// Memory that the rank of the stage that gains most would need more without parallel.sequence_parallel; 0 where it is
/// not set. Pure.
int64_t saved_by_sequence_parallelism(const JobRequest& request, const FinishedJob& finished);

/// States of a rank (parameters, gradients, optimizer) as the planner places them, beside the formula of the ZeRO paper
/// (Rajbhandari et al. 2020, figure 1) for the same bytes: of `parameters` each `whole`, and `shared` among the ranks.
struct ZeroMemory {
  int stage = 0;
  int ranks = 0;
  int64_t planned_bytes = 0;  // without slots
  int64_t outside_bytes = 0;  // of these: gradients (stages 2, 3) and parameters (3) that stay whole: of embedding and
                              // head, where they share a table
  int64_t formula_bytes = 0;
};

/// Stages 0 to 3 on 2, 4, 8 and 64 data ranks, one row after the other. Pure. Empty when the model does not fit a
/// layout.
std::vector<ZeroMemory> zero_memory(const JobRequest& request);

/// Where the update can run, and what each costs: memory of a rank, and the step in virtual time, where a second stream
/// takes nothing from the first.
struct UpdateOption {
  std::string name;
  int64_t memory_bytes = 0;  // of the stage that needs most
  double step_ms = 0;
  bool is_planned = false;
};
/// On the compute stream, beside it in place, beside it with two copies of the weights (not with stage 3). `planned` is
/// the job of `request`, whose rehearsed step takes `planned_step_ms`; the others are launched as it is. Pure.
std::vector<UpdateOption> update_options(const JobRequest& request, const FinishedJob& planned, double planned_step_ms);

/// What the run file does not say, one line each, for whoever starts the run: what of it has no effect, and what the
/// planner has decided (tensor groups across nodes, where ZeRO-2 accumulates, what buckets are where
/// overlap.bucket_size does not cut, how layers are dealt that do not divide). Pure.
std::vector<std::string> remarks(const RunConfig& config, const Machine& machine, const FinishedJob& finished);

/// Bytes that one rank sends in a step of the training plan for gradients and parameters, and what the theory says of
/// the whole model: per element gradients 2 (stage 0) or 1, parameters 0, 1 or (stage 3) 2 of every micro-batch, x
/// (n-1)/n; with hybrid sharding an all-reduce of the shard across groups besides. A split tied table (docs/notes/0003)
/// sends its two shares apart: rows, or the table once more.
struct WireBytes {
  int64_t sent = 0;
  int64_t theory = 0;
};
WireBytes wire_bytes_of_step(const Job& job);

/// "1f1b over 4 stages of 3 + 3 + 3 + 3 layers, 8 micro-batches: stages idle 37% of a step's compute", and what to do
/// when there are too few. Pure.
std::string schedule_line(const RunConfig& config, const std::vector<std::shared_ptr<const Job>>& stages,
                          const Played& played);

}  // namespace slipstream::planner

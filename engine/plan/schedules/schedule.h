// SPDX-License-Identifier: Apache-2.0
#pragma once
// Pipeline schedules: the order in which each stage computes its micro-batches. Pure functions and values; the
// transfers between stages and their times follow from the order (passes/pipeline_transfers.h).
//
// Words: a stage is one place along the pipeline axis; a chunk is one of its `virtual_stages` parts of the model. The
// placement tells which.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/modes.h"
#include "engine/plan/schedules/stage_placement.h"

namespace slipstream {

enum class Pass : uint8_t {
  forward,
  backward,  // if the schedule splits it: the gradients of inputs only
  weight,    // the gradients of weights, if they are split off
};

/// One pass of one micro-batch through one chunk.
struct Action {
  Pass pass = Pass::forward;
  int chunk = 0;
  int micro_batch = 0;
  bool operator==(const Action&) const = default;
};

struct ScheduleShape {
  int stages = 1;
  int micro_batches = 1;
  int virtual_stages = 1;
  /// 1F1B as published waits for every pipeline transfer: between two stages one micro-batch goes forward while one
  /// comes back, and no compute is left while both travel. With one more micro-batch in flight per later stage,
  /// transfers of up to half a pass are hidden.
  bool hides_transfers = false;
  /// ZB-H1: number of input gradients by which the weight gradients of each stage lag; empty: as published, the number
  /// of stages before it.
  std::vector<int> lags = {};
};

struct PipelineSchedule {
  ScheduleShape shape;
  StagePlacement placement;
  bool splits_backward = false;
  std::vector<std::vector<Action>> stages;  // compute order of each

  int parts() const { return placement.parts(); }
};

/// Throws: ConfigError if no schedule of this kind has this shape: chunks without interleaving, or an interleaved
/// schedule whose micro-batches are not a multiple of the stages.
void require_shape(ScheduleKind kind, const ScheduleShape& shape);

/// Pure. Where a schedule of this kind has the parts of the model.
StagePlacement stage_placement(ScheduleKind kind, int stages, int virtual_stages);
/// Pure. Does it delay gradients of weights?
bool splits_backward(ScheduleKind kind);
/// Pure. A number that peak_in_flight() of every chunk reaches, in every schedule of this kind.
int least_in_flight(ScheduleKind kind, const ScheduleShape& shape, int stage);

/// Throws: like require_shape.
PipelineSchedule make_schedule(ScheduleKind kind, const ScheduleShape& shape);

/// Throws: ConfigError naming stage, chunk and micro-batch unless every stage runs every micro-batch of every chunk
/// forward, then backward (then weight) once, in the order of micro-batches within a chunk, and play() ends.
void require_valid(const PipelineSchedule& schedule);

/// Largest number of micro-batches of `chunk` (-1: all chunks) that a stage has begun and not finished.
int peak_in_flight(const PipelineSchedule& schedule, int stage, int chunk = -1);

/// A schedule in virtual time.
struct Played {
  struct Span {
    int64_t begin_ns = 0;
    int64_t end_ns = 0;
  };
  std::vector<std::vector<Span>> stages;  // [stage][position in its order]
  int64_t makespan_ns = 0;
  std::vector<int64_t> busy_ns;  // by stage

  /// Idle share of the stage that computes most: (makespan - busy) / busy.
  double bubble() const;
};
struct PlayTimes {
  std::function<int64_t(int stage, const Action&)> action_ns;
  std::function<int64_t(int from_stage, const Action&)> transfer_ns;  // of the transfer after the action; empty: 0
};
/// Plays a schedule: every action begins when its stage is free and its input has arrived. Throws: ConfigError naming
/// the stages that wait for each other if it never ends.
Played play(const PipelineSchedule& schedule, const PlayTimes& times);

/// Pure, in integers: equal on all ranks with equal times. The lags of ZB-H1 with the shortest step for `times`; empty
/// if the published lags are as good within a thousandth of the step. With them no step is longer than with the
/// published ones or than 1F1B's, and no stage has more micro-batches in flight than the first one in 1F1B of the same
/// shape. Among equal results the first one tried wins, and the published lags win over all. `most` for each stage is
/// at most most_lags(); empty: most_lags().
/// Source: Qi et al. 2024, arXiv:2401.10241, section 3, whose schedule for unequal times also searches by trials.
std::vector<int> best_lags(const ScheduleShape& shape, const PlayTimes& times, std::vector<int> most = {});

/// Pure. Largest lag of each stage's weight gradients that keeps its micro-batches in flight at the first stage's
/// number.
std::vector<int> most_lags(const ScheduleShape& shape);

/// Pure. The chunks of `stage` whose gradients can all be reduced at once, when the last micro-batch has finished them,
/// without a longer step: the reduction ends before the next chunk produces gradients, and before the last stage ends,
/// for which the norm and the next step wait. `reduce_ns`: time for all gradients of a chunk.
std::vector<char> off_critical_path(const PipelineSchedule& schedule, const Played& played, int stage,
                                    const std::function<int64_t(int chunk)>& reduce_ns);

/// Stage x time, one column per `tick_ns`: "F0 F1 . B0"; capital letters for passes, the chunk after a dot if there are
/// several. A table of more than 2 x `ends` columns has the first and the last `ends`, with "..." between; 0: all.
std::string schedule_table(const PipelineSchedule& schedule, const Played& played, int64_t tick_ns, size_t ends = 0);

/// "stage,position,pass,chunk,micro_batch" and one line per action.
std::string schedule_csv(const PipelineSchedule& schedule);
/// Reads the output of schedule_csv, rows in any order. Throws: ConfigError naming the line, or like require_valid.
PipelineSchedule parse_schedule(const std::string& csv, const ScheduleShape& shape, const std::string& source);

}  // namespace slipstream

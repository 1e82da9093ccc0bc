// SPDX-License-Identifier: Apache-2.0
#pragma once
// Pipeline schedules: the order in which each stage computes its micro-batches. All functions are pure. The transfers
// between stages and their times follow from the order (passes/pipeline_transfers.h).
//
// A stage is one position along the pipeline axis. A chunk is one of the `virtual_stages` parts of the model that a
// stage has. The placement assigns the parts to stages.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/modes.h"
#include "engine/plan/schedules/stage_placement.h"

namespace slipstream {

enum class Pass : uint8_t {
  forward,
  backward,  // only the gradients of inputs, if the schedule splits the pass
  weight,    // the gradients of weights, if the schedule splits them off
};

/// One pass of one micro-batch through one chunk.
struct Action {
  Pass pass = Pass::forward;
  int chunk = 0;
  int micro_batch = 0;
  /// Its pieces take turns with those of the next action: one computes while what the other has sent inside layers
  /// travels.
  bool paired = false;
  bool operator==(const Action&) const = default;
};

struct ScheduleShape {
  int stages = 1;
  int micro_batches = 1;
  int virtual_stages = 1;
  /// Hides pipeline transfers. 1F1B as published waits for every transfer: between two stages, one micro-batch goes
  /// forward while another one comes back, and no compute is left while both travel. With one more micro-batch in
  /// flight per later stage, transfers of up to half a pass are hidden.
  bool hides_transfers = false;
  /// ZB-H1: the number of input gradients by which the weight gradients of each stage lag. Empty: as published, which
  /// is the number of stages before it.
  std::vector<int> lags = {};
};

struct PipelineSchedule {
  ScheduleShape shape;
  StagePlacement placement;
  bool splits_backward = false;
  bool takes_turns = false;                 // a backward pass takes turns with the forward pass of another micro-batch
  std::vector<std::vector<Action>> stages;  // the compute order of each stage

  int parts() const { return placement.parts(); }
};

/// Throws: ConfigError if no schedule of this kind has this shape: chunks without interleaving, or an interleaved
/// schedule whose micro-batches are not a multiple of the stages.
void require_shape(ScheduleKind kind, const ScheduleShape& shape);

/// Pure. Returns where a schedule of this kind places the parts of the model.
StagePlacement stage_placement(ScheduleKind kind, int stages, int virtual_stages);
/// Pure. Returns true if the schedule delays gradients of weights.
bool splits_backward(ScheduleKind kind);
/// Pure. Returns a number that peak_in_flight() of every chunk reaches in every schedule of this kind.
int least_in_flight(ScheduleKind kind, const ScheduleShape& shape, int stage);

/// Throws: as require_shape.
PipelineSchedule make_schedule(ScheduleKind kind, const ScheduleShape& shape);

/// Pure. Returns the schedule of one stage in which the backward pass of each micro-batch is paired with the forward
/// pass of the next one. Two micro-batches are in flight. Source: the order of DeepSeek-AI 2024, arXiv:2412.19437,
/// section 3.2.1, on one stage.
PipelineSchedule make_paired_schedule(int micro_batches);

/// Checks that every stage runs every micro-batch of every chunk once forward and then once backward (and then once for
/// the weights), in the order of micro-batches within a chunk, and that play() ends. Throws: ConfigError that names
/// stage, chunk and micro-batch.
void require_valid(const PipelineSchedule& schedule);

/// Returns the largest number of micro-batches of `chunk` (-1: all chunks) that a stage has begun and not finished.
int peak_in_flight(const PipelineSchedule& schedule, int stage, int chunk = -1);

/// A schedule in virtual time.
struct Played {
  struct Span {
    int64_t begin_ns = 0;
    int64_t end_ns = 0;
  };
  std::vector<std::vector<Span>> stages;  // [stage][position in the stage's order]
  int64_t makespan_ns = 0;
  std::vector<int64_t> busy_ns;  // by stage

  /// Returns the idle share of the stage that computes most: (makespan - busy) / busy.
  double bubble() const;
};
struct PlayTimes {
  std::function<int64_t(int stage, const Action&)> action_ns;
  /// The time of the transfer after the action; empty: 0.
  std::function<int64_t(int from_stage, const Action&)> transfer_ns;
};
/// Plays a schedule: every action begins when its stage is free and its input has arrived. Throws: ConfigError that
/// names the stages that wait for each other if the schedule never ends.
Played play(const PipelineSchedule& schedule, const PlayTimes& times);

/// Pure. Returns the lags of ZB-H1 with the shortest step for `times`. Returns none if the published lags are as good
/// within a thousandth of the step. With the result no step is longer than with the published lags or with 1F1B, and no
/// stage has more micro-batches in flight than the first stage in 1F1B of the same shape. Among equal results the first
/// one that was tried wins, and the published lags win over all others. `most` is at most most_lags() for each stage;
/// empty: most_lags(). The search uses integers, so that all ranks with equal times find equal lags.
/// Source: Qi et al. 2024, arXiv:2401.10241, section 3, whose schedule for unequal times also searches by trials.
std::vector<int> best_lags(const ScheduleShape& shape, const PlayTimes& times, std::vector<int> most = {});

/// Pure. Returns the largest lag of each stage's weight gradients for which the stage has no more micro-batches in
/// flight than the first stage.
std::vector<int> most_lags(const ScheduleShape& shape);

/// Pure. Returns the chunks of `stage` whose gradients can all be reduced at once, when the last micro-batch has
/// finished them, without a longer step. The reduction then ends before the next chunk produces gradients, and before
/// the last stage ends, for which the norm and the next step wait. `reduce_ns` is the time for all gradients of a
/// chunk.
std::vector<char> off_critical_path(const PipelineSchedule& schedule, const Played& played, int stage,
                                    const std::function<int64_t(int chunk)>& reduce_ns);

/// Returns a table of stages and time, with one column per `tick_ns`: "F0 F1 . B0". Capital letters stand for passes.
/// If there are several chunks, the chunk follows after a dot. A table of more than 2 x `ends` columns shows the first
/// and the last `ends`, with "..." between them; 0: all.
std::string schedule_table(const PipelineSchedule& schedule, const Played& played, int64_t tick_ns, size_t ends = 0);

/// Returns "stage,position,pass,chunk,micro_batch" and one line per action.
std::string schedule_csv(const PipelineSchedule& schedule);
/// Reads the output of schedule_csv with rows in any order. Throws: ConfigError that names the line, or as
/// require_valid.
PipelineSchedule parse_schedule(const std::string& csv, const ScheduleShape& shape, const std::string& source);

}  // namespace slipstream

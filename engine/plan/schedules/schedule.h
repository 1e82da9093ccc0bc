// SPDX-License-Identifier: Apache-2.0
#pragma once
// Pipeline schedules: in which order each stage computes its micro-batches. Pure functions and values; what crosses
// stages, and when it is sent, follows from the order (passes/hops.h).
//
// Words: a stage is one place along the pipeline axis; a chunk is one of its `virtual_stages` parts of the model. Chunk
// c of stage s is part c x stages + s of the model: parts go round the stages.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace slipstream {

enum class Pass : uint8_t {
  forward,
  backward,  // where the schedule splits it: the gradients of inputs only
  weight,    // the gradients of weights, where they were split off
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
  /// 1F1B as published waits for every hop: between two stages one micro-batch goes there while one comes back, and
  /// nothing is left to do while both travel. With one more alive per stage behind, hops of up to half a pass travel
  /// under compute.
  bool hides_transfers = false;
  /// ZB-H1: by how many gradients of inputs the gradients of weights lag, for each stage; empty: as published, by as
  /// many as there are stages before it.
  std::vector<int> lags = {};
};

enum class ScheduleKind : uint8_t {
  gpipe,             // all forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965)
  one_f_one_b,       // at most stages - s micro-batches alive on stage s (Narayanan et al. 2021, arXiv:2006.09503)
  interleaved_1f1b,  // the same over virtual_stages chunks (Narayanan et al. 2021, arXiv:2104.04473)
  zb_h1,             // 1F1B whose weight gradients fill the bubbles (Qi et al. 2024, arXiv:2401.10241)
};
const char* name_of(ScheduleKind kind);

struct PipelineSchedule {
  ScheduleShape shape;
  bool splits_backward = false;
  std::vector<std::vector<Action>> stages;  // compute order of each

  int parts() const { return shape.stages * shape.virtual_stages; }
};

/// Throws: ConfigError if no schedule of this kind has this shape: chunks without interleaving, or interleaving of
/// micro-batches that are no multiple of the stages.
void require_shape(ScheduleKind kind, const ScheduleShape& shape);

/// Throws: what require_shape throws.
PipelineSchedule make_schedule(ScheduleKind kind, const ScheduleShape& shape);

/// Throws: ConfigError naming stage, chunk and micro-batch unless every stage does every micro-batch of every chunk
/// forward, then backward (then weight) once, in the order of micro-batches within a chunk, and play() ends.
void require_valid(const PipelineSchedule& schedule);

/// Micro-batches of `chunk` (-1: all chunks) that a stage has begun and whose last pass is still to come, at most.
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
  std::function<int64_t(int from_stage, const Action&)> transfer_ns;  // of what the use sends on; empty: 0
};
/// Every use begins when its stage is free and its input has arrived. Throws: ConfigError naming the stages that wait
/// for each other if it never ends.
Played play(const PipelineSchedule& schedule, const PlayTimes& times);

/// The lags of ZB-H1 with which a step is shortest by `times`; empty where those that were published are as good, but
/// for a thousandth of the step. With them no step is longer than with the published ones or than 1F1B's, and no stage
/// has more micro-batches alive than the first one has in 1F1B of the same shape. Pure, in integers: the same on all
/// ranks that are told the same times; of equals the first that is tried, the published lags before all. `most` for
/// each stage, no more than most_lags() says; empty: as that says.
/// Source: Qi et al. 2024, arXiv:2401.10241, section 3, whose schedule for unequal times also looks for the best by
/// trying.
std::vector<int> best_lags(const ScheduleShape& shape, const PlayTimes& times, std::vector<int> most = {});

/// How far a stage's weight gradients may lag before it has more micro-batches alive than the first one. Pure.
std::vector<int> most_lags(const ScheduleShape& shape);

/// Which chunks of `stage` lose nothing if all of their gradients are reduced at once, when the last micro-batch is
/// done with them: that ends before the next chunk makes any, and before the last stage is done computing, for which
/// the norm and the next step wait. `reduce_ns` of all gradients of a chunk. Pure.
std::vector<char> off_critical_path(const PipelineSchedule& schedule, const Played& played, int stage,
                                    const std::function<int64_t(int chunk)>& reduce_ns);

/// Stage x time, one column per `tick_ns`: "F0 F1 . B0"; capital letters of passes, chunk behind a dot when there are
/// several. Of more than 2 x `ends` columns the first and the last `ends`, "..." between them; 0: all.
std::string schedule_table(const PipelineSchedule& schedule, const Played& played, int64_t tick_ns, size_t ends = 0);

/// "stage,position,pass,chunk,micro_batch" and one line per use.
std::string schedule_csv(const PipelineSchedule& schedule);
/// Reads what schedule_csv wrote, rows in any order. Throws: ConfigError naming the line, or what require_valid throws.
PipelineSchedule parse_schedule(const std::string& csv, const ScheduleShape& shape, const std::string& source);

}  // namespace slipstream

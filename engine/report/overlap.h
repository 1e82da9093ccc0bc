// SPDX-License-Identifier: Apache-2.0
#pragma once
// Divides the timeline of a step into computing, communicating, waiting for communication, and the rest.
//
// Definitions (per rank and step), as metrics.jsonl prints them:
//   step     start of the step's first work on compute to the start of the next step's (or the end of its last work)
//   compute  union of the works on the compute stream
//   exposed  union of the intervals in which compute waited for an event of a communication channel, or for local work
//            on its own stream (an update) while that waited for such an event, less bubble
//   bubble   the part in which the awaited task had not begun, because another pipeline stage still computed; the
//            first wait of the next step for a pipeline transfer counts whole
//   input    the same for the channel that stages batches
//   other    step - compute - exposed - bubble - input: gaps of the host
//   comm     union over communication channels of their tasks, each from when the last member of its group entered
//   skew     union of the tasks from when this rank entered, minus comm: waiting for a late peer
//   hidden   1 - exposed / comm, 0 to 1: hidden_share()

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "engine/device/device.h"

namespace slipstream {

struct Interval {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

/// Pure. 1 - exposed / comm, within 0 to 1; 0 without communication. A wait for a late peer is exposed although it is
/// not communication, so exposed may exceed comm.
double hidden_share(double comm, double exposed);

/// Pure. Total length of the union.
int64_t union_ns(std::vector<Interval> intervals);

/// A task on a communication channel.
struct TaskTime {
  uint32_t channel = 0;
  uint32_t item = 0;
  int64_t begin_ns = 0;  // entry of this rank
  int64_t end_ns = 0;
};

enum class ChannelKind : uint8_t {
  compute,
  communication,
  stages,
  input,
  local
};  // stages: transfers between stages of a pipeline

/// A wait of compute, with the task that it waited for.
struct Exposure {
  uint64_t awaited = 0;  // tag of the event
  uint32_t item = 0;     // the waiting item
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  ChannelKind kind = ChannelKind::communication;  // of the awaited task: input, communication or stages
  size_t task = SIZE_MAX;  // stages: index into StepTimes::tasks; SIZE_MAX: a task of the next step, which another
                           // stage has not begun
  int64_t bubble_ns = 0;   // stages: the bubble within this wait

  /// Pure. Its part of StepTimes::exposed_ns.
  int64_t exposed_ns() const { return kind == ChannelKind::input ? 0 : end_ns - begin_ns - bubble_ns; }
};

struct StepTimes {
  uint32_t step = 0;
  int64_t begin_ns = 0;
  int64_t step_ns = 0;
  int64_t compute_ns = 0;
  int64_t exposed_ns = 0;
  int64_t bubble_ns = 0;
  int64_t input_ns = 0;
  int64_t other_ns = 0;
  int64_t comm_ns = 0;
  int64_t skew_ns = 0;
  std::vector<TaskTime> tasks;                        // by (channel, begin)
  std::vector<std::pair<uint32_t, int64_t>> work_ns;  // (item, time of its works) of compute and local channels
  std::vector<Exposure> exposures;                    // of communication and input, in time order
};

/// Collects the spans of all streams of one rank and closes a step when the next one has begun.
class OverlapMeter {
 public:
  /// `kinds[c]` is the kind of channel c; event tags have the channel in their upper 32 bits.
  explicit OverlapMeter(std::vector<ChannelKind> kinds);

  void add(uint32_t channel, const std::vector<Span>& spans);

  /// Times of `step`, all of whose spans have been added, and drops these spans. `next_begins`: the next step follows
  /// at once and its first work has been added too; otherwise the step ends with its last work. comm starts at this
  /// rank's own entry (skew 0) until apply_last_entries().
  StepTimes take(uint32_t step, bool next_begins);

 private:
  struct Spans {
    std::vector<Interval> works;                            // compute
    std::vector<Exposure> waits;                            // compute
    std::vector<TaskTime> tasks;                            // communication channels
    std::map<uint32_t, std::vector<Exposure>> local_waits;  // by local channel
    std::map<uint32_t, int64_t> work_ns;
  };
  std::vector<ChannelKind> kinds_;
  std::map<uint32_t, Spans> steps_;
};

/// Recounts comm and skew, and divides the waits of compute into exposed and bubble. `last_entries[i]` is the time at
/// which the last member of the group of tasks[i] entered.
void apply_last_entries(StepTimes& times, const std::vector<int64_t>& last_entries);

}  // namespace slipstream

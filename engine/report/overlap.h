// SPDX-License-Identifier: Apache-2.0
#pragma once
// Divides the timeline of a step into computing, communicating, waiting for communication, and the rest.
//
// Definitions (per rank and step), as metrics.jsonl prints them:
//   step     start of the step's first work on compute to the start of the next step's (or the end of its last work)
//   compute  union of the works on the compute stream
//   exposed  the part of compute's waits for communication that an infinitely fast network would remove. These
//            waits are for events of communication channels, and for local work while it waited for such an event
//   bubble   the rest of these waits: another rank still computed, or its host was late (critical_path.h)
//   input    union of the waits for the channel that stages batches
//   other    step - compute - exposed - bubble - input: gaps of the host
//   comm     union over communication channels of their tasks, each from when the last member of its group entered
//   hidden   the part of comm during which compute ran
//   skew     union of the tasks from when this rank entered, minus comm: waiting for a late peer

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/device/device.h"

namespace slipstream {

constexpr int64_t kAdjacentNs = 1000;  // works that are closer than this count as one

struct Interval {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

/// Pure. Returns part / whole, limited to 0 to 1. The result for a whole of 0 is 0.
double share_of(double part, double whole);

/// Pure. Returns 1 - exposed / comm, limited to 0 to 1, and 0 without communication. It is for plans in which compute
/// pauses only for communication.
double hidden_share(double comm, double exposed);

/// Pure. Sets negative parts to 0 and shrinks the others in proportion until they add up to `total`, which must not
/// exceed their sum.
std::vector<int64_t> shrunk_to(std::vector<int64_t> parts, int64_t total);

/// Pure. Returns the total length of the union.
int64_t union_ns(std::vector<Interval> intervals);

/// Returns the total length of the intersection of two unions. Pure.
int64_t common_ns(const std::vector<Interval>& a, const std::vector<Interval>& b);

/// A task on a communication channel.
struct TaskTime {
  uint32_t channel = 0;
  uint32_t item = 0;
  int64_t begin_ns = 0;  // when this rank entered
  int64_t end_ns = 0;
  int64_t ready_ns = 0;  // see Span
  int64_t link_ns = -1;  // see Span
};

/// `stages` are transfers between stages of a pipeline. A wait for a local channel is part of `other`, unless the
/// channel itself waits for communication.
enum class ChannelKind : uint8_t { compute, communication, stages, input, local };

/// Works on a channel that does not communicate, without a gap between them.
struct WorkTime {
  ChannelKind kind = ChannelKind::compute;
  uint32_t channel = 0;
  uint32_t item = 0, last_item = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

/// A wait of compute, with the task that it waited for.
struct Exposure {
  uint64_t awaited = 0;  // the tag of the event
  uint32_t item = 0;     // the waiting item
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  ChannelKind kind = ChannelKind::communication;  // the kind of the awaited task: input, communication or stages
  int64_t bubble_ns = 0;                          // the bubble within this wait

  /// Pure. Returns this wait's part of StepTimes::exposed_ns.
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
  int64_t hidden_ns = 0;
  int64_t skew_ns = 0;
  bool next_begins = false;                           // the step ends when the next one begins
  std::vector<TaskTime> tasks;                        // by (channel, begin)
  std::vector<TaskTime> after;                        // tasks of the next step that began before its first work
  std::vector<WorkTime> works;                        // by (channel, begin)
  std::vector<std::pair<uint32_t, int64_t>> work_ns;  // (item, time of its works), for compute and local channels
  std::vector<std::pair<uint32_t, int64_t>> own_ns;   // the same without the time in which the thread did not run
  int64_t unawaited_ns = 0;         // since the previous step's last work: compute had no work and waited for no event
  int64_t asleep_ns = 0;            // threads slept inside works of compute
  int64_t ready_ns = 0;             // threads of compute waited for a core, in works and waits
  int64_t ready_between_ns = 0;     // threads of compute waited for a core between works and waits
  std::vector<Exposure> exposures;  // waits for communication and input, in time order
  std::shared_ptr<const StepTimes> previous;  // the step directly before this one
};

/// Collects the spans of all streams of one rank and closes a step when the next one has begun. Spans of plans that run
/// beside the steps do not count (Job::is_in_step()).
class OverlapMeter {
 public:
  /// `kinds[c]` is the kind of channel c. Event tags have the channel in their upper 32 bits.
  explicit OverlapMeter(std::vector<ChannelKind> kinds);

  void add(uint32_t channel, const std::vector<Span>& spans);

  /// Returns the times of `step`, all of whose spans must have been added, and drops these spans. If `next_begins` is
  /// true, the next step follows at once and its first work has been added too. Otherwise the step ends with its last
  /// work. comm starts at this rank's own entry (skew 0) until apply_last_entries(), and every wait for communication
  /// counts as exposed until split_waits().
  StepTimes take(uint32_t step, bool next_begins);

 private:
  /// Adjacent works of one item.
  struct ItemTime {
    uint32_t item = 0;
    int64_t work_ns = 0;
    int64_t away_ns = 0;  // time in which the thread did not run
  };
  struct Spans {
    std::vector<ItemTime> items;                            // in the order of the calls of add()
    std::vector<WorkTime> works;                            // by channel without communication, in time order
    std::vector<Exposure> waits;                            // of compute
    std::vector<TaskTime> tasks;                            // of communication channels
    std::map<uint32_t, std::vector<Exposure>> local_waits;  // by local channel
    int64_t asleep_ns = 0, ready_ns = 0, ready_between_ns = 0;
  };
  static int64_t unawaited_ns(const Spans& spans, const std::vector<Interval>& busy, int64_t from_ns);
  int64_t last_work_end_ns_ = 0;  // of compute, in the step that was taken last
  std::vector<ChannelKind> kinds_;
  std::shared_ptr<const StepTimes> last_;  // the step taken last
  std::map<uint32_t, Spans> steps_;
};

/// Counts comm, hidden and skew again. `last_entries[i]` is the time at which the last member of the group of tasks[i]
/// entered.
void apply_last_entries(StepTimes& times, const std::vector<int64_t>& last_entries);

}  // namespace slipstream

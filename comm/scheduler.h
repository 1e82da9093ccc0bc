// SPDX-License-Identifier: Apache-2.0
#pragma once
// Consumes points with one cursor through the plan's host order, by waits, launches and records. The scheduler knows
// tasks, channels and points, and nothing about ZeRO, pipelines or tensor parallelism.

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/flight.h"
#include "engine/plan/job.h"
#include "engine/step/points.h"
#include "engine/step/step.h"

namespace slipstream::comm {

/// The tag of an item's event. Timelines identify by it what a wait waited for. `item`: the number of the item in
/// timelines.
constexpr uint64_t event_tag(ChannelId channel, ItemId item) { return uint64_t{channel} << 32 | item; }

class Scheduler final : public PointListener {
 public:
  /// `streams[c]` is the stream of channel c. Borrows all.
  Scheduler(const Job& job, Device& device, std::vector<Stream*> streams);

  /// Makes the events of `plan`, two for each item, so that a run never overwrites an event that the next run waits
  /// for. `first_item`: the number of the plan's first item in timelines.
  void bind(const Plan& plan, const BoundWorks& works, uint32_t first_item = 0);

  void begin(const Plan& plan, const Frame& frame) override;
  void before(ItemId item, Stream& compute, const Frame& frame) override;
  void reached(ItemId item, Stream& compute, const Frame& frame) override;

  /// Registers a run of `plan` that the device replayed as a graph. Later runs follow it like any other.
  void replayed(const Plan& plan, uint32_t step);

  /// The first work in the plan's order that the device has not reported as ended, such as "all_reduce of 7 float32 on
  /// channel reduce"; empty if all have ended. Callable from any thread while no thread issues work.
  std::string in_flight() const;

  /// The works of all communication channels that this job uses, by the events of the last runs. Callable from any
  /// thread; on a GPU only while no thread issues work. `times_events`: the events of the device know when they
  /// completed.
  FlightState flight(bool times_events) const;

  /// The event that ends the latest run of `plan`, which is that of its last spine item.
  Event& end_of(const Plan& plan);
  /// Does not wait. True if the latest run of a plan whose items are all on one channel has ended, or if there was
  /// none.
  bool ended(const Plan& plan) const;

 private:
  struct Bound {
    const Plan* plan = nullptr;
    const BoundWorks* works = nullptr;
    uint32_t first_item = 0;
    std::vector<char> recorded;  // per item: it has events
    std::vector<std::unique_ptr<Event>> events[2];
    std::vector<ItemId> next_recorded;  // per item: the first item from it on, on its channel, that is recorded
    uint64_t runs = 0;
    std::vector<int64_t> communications;  // by channel: the number of communication tasks in a run
  };
  struct Seam {
    std::multimap<ItemId, std::pair<uint32_t, ItemId>> waits;  // to -> (run of the history, from)
  };
  /// One issued run: its plan, and the index of the plan's set of events that it uses.
  struct Run {
    Bound* bound = nullptr;
    int parity = 0;
    bool replayed = false;
  };

  /// A run that flight() reports. The newest one is the last.
  struct Flown {
    Run run;
    uint64_t number = 0;  // counted as Bound::runs
    uint32_t step = 0;
  };
  class Look;
  friend class Look;

  /// Starts a run of `bound`: chooses its events and its waits on earlier runs.
  void enter(Bound& bound, uint32_t step, bool is_replayed);
  void leave();
  void wait_for_points(ItemId item, Stream& stream, const Frame& frame);
  void issue_tasks(const Frame& frame);
  const Seam& seam_for(const Bound& next);
  Event& event_of(const Run& run, ItemId item) const;

  const Job& job_;
  Device& device_;
  std::vector<Stream*> streams_;
  std::map<const Plan*, Bound> bound_;
  std::deque<Run> history_;  // compacted; the input of link()
  std::map<std::vector<const Plan*>, Seam> seams_;
  Run current_;
  const Seam* seam_ = nullptr;
  std::atomic<size_t> cursor_{0};  // the items of the current run that are issued

  mutable std::mutex mutex_;  // held by flight(), and where a run begins or ends
  std::deque<Flown> flown_;
  std::vector<int64_t>
      communications_before_;  // by channel: the number of communication tasks in the runs before flown_
};

}  // namespace slipstream::comm

// SPDX-License-Identifier: Apache-2.0
// The scheduler makes every stream wait for all that an item waits for, inside a plan and across the seams between
// plans. Streams that only count play the commands: a stream knows what its waits have told it.

#include "comm/scheduler.h"

#include <algorithm>
#include <map>

#include "tests/comm/rehearse/toy.h"

using namespace slipstream;
using namespace slipstream::comm;

namespace {

/// Launches that have ended, by stream.
using EndedBy = std::vector<int64_t>;

void join(EndedBy& clock, const EndedBy& other) {
  for (size_t s = 0; s < clock.size(); ++s) clock[s] = std::max(clock[s], other[s]);
}

struct CountingEvent final : Event {
  void synchronize() override {}
  bool query() const override { return true; }
  int64_t completed_ns() const override { return 0; }
  uint64_t tag() const override { return 0; }
  EndedBy clock;  // empty: it was never recorded
};

struct CountingStream final : Stream {
  CountingStream(size_t index_, size_t streams) : clock(streams), index(index_) {}
  void launch(const Work&, const Frame& frame) override {
    begun[frame.item] = clock;
    ++clock[index];
    position[frame.item] = clock[index];
  }
  void record(Event& event) override { dynamic_cast<CountingEvent&>(event).clock = clock; }
  void wait(const Event& event, const Frame&) override {
    if (const EndedBy& theirs = dynamic_cast<const CountingEvent&>(event).clock; !theirs.empty()) join(clock, theirs);
  }
  void synchronize() override {}
  const std::string& name() const override { return text; }
  void drain(std::vector<slipstream::Span>&) override {}

  EndedBy clock;
  size_t index;
  std::map<ItemId, EndedBy> begun;     // of the present run: what was known to have ended before the item
  std::map<ItemId, int64_t> position;  // of the item's launch on this stream
  std::string text;
};

struct CountingDevice final : Device {
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::unique_ptr<Stream> make_stream(const StreamOptions&) override { return nullptr; }
  std::unique_ptr<Event> make_event(uint64_t) override { return std::make_unique<CountingEvent>(); }
  std::unique_ptr<Allocation> allocate(int64_t, const std::string&) override { return nullptr; }
  void copy_to_host(void*, const std::byte*, int64_t) override {}
  void copy_from_host(std::byte*, const void*, int64_t) override {}
  int64_t now_ns() const override { return 0; }
  int64_t allocation_count() const override { return 0; }
  int64_t host_wait_count() const override { return 0; }
  void inject_delays(uint64_t, int64_t) override {}
};

struct Counts {
  int64_t waits = 0, second = 0;  // waits at seams, and those beyond the first of their item
};

/// Issues the runs as a rank does, and compares what each item knew with what it has to wait for.
Counts check_waits(const Job& job, const std::vector<const Plan*>& runs) {
  static const Work nothing{.name = "nothing", .fn = [](LaunchContext&) {}};
  CountingDevice device;
  std::vector<CountingStream> streams;
  for (size_t c = 0; c < job.channels.size(); ++c) streams.emplace_back(c, job.channels.size());
  std::vector<Stream*> borrowed;
  for (CountingStream& stream : streams) borrowed.push_back(&stream);
  Scheduler scheduler(job, device, borrowed);
  std::map<const Plan*, BoundWorks> works;
  for (const Plan* plan : runs)
    if (works.try_emplace(plan, plan->size(), nothing).second) scheduler.bind(*plan, works.at(plan));
  const auto seams = link_all(runs, job.channels);
  std::vector<std::map<ItemId, int64_t>> positions;  // by run
  Counts counts;
  for (size_t r = 0; r < runs.size(); ++r) {
    const Plan& plan = *runs[r];
    for (CountingStream& stream : streams) stream.begun.clear(), stream.position.clear();
    CountingStream& compute = streams[kComputeChannel];
    const Frame frame{.step = static_cast<uint32_t>(r + 1)};
    scheduler.begin(plan, frame);
    for (const ItemId item : plan.order) {
      if (!plan.is_spine(item)) continue;
      scheduler.before(item, compute, frame);
      compute.launch(nothing, Frame{.item = item});
      scheduler.reached(item, compute, frame);
    }
    std::map<ItemId, EndedBy> begun;
    positions.emplace_back();
    for (const CountingStream& stream : streams) {
      begun.insert(stream.begun.begin(), stream.begun.end());
      positions.back().insert(stream.position.begin(), stream.position.end());
    }
    REQUIRE(begun.size() == plan.size());
    const auto knows = [&](ItemId item, size_t run, ItemId earlier) {
      return begun.at(item)[(*runs[run])[earlier].channel] >= positions[run].at(earlier);
    };
    for (ItemId item = 0; item < plan.size(); ++item)
      for (const Point& point : plan[item].after)
        if (!knows(item, r, point.item)) FAIL("run " << r << ": item " << item << " does not wait for " << point.item);
    std::map<ItemId, int> of_item;
    for (const SeamWait& wait : seams[r]) {
      ++counts.waits;
      counts.second += ++of_item[wait.to] > 1;
      if (!knows(wait.to, wait.run, wait.from))
        FAIL("run " << r << ": item " << wait.to << " does not wait for item " << wait.from << " of run " << wait.run);
    }
  }
  return counts;
}

}  // namespace

TEST_CASE("the scheduler issues every wait of every plan and of every seam", "[scheduler]") {
  // The next run's first item reads what three channels have written, so it has a wait for each of them.
  ToyJob toy;
  Plan& train =
      ToyPlan(toy)
          .compute("forward", 10, {"w1", "w2", "w3"}, {"x"})
          .compute("backward", 20, {"w1", "w2", "w3", "x"}, {"g1", "g2", "g3"})
          .task({.name = "update1", .channel = "reduce", .after = {"backward"}, .reads = {"g1"}, .writes = {"w1"}})
          .task({.name = "update2", .channel = "gather", .after = {"backward"}, .reads = {"g2"}, .writes = {"w2"}})
          .task({.name = "update3", .channel = "d2h", .after = {"backward"}, .reads = {"g3"}, .writes = {"w3"}})
          .build();
  // The copy is on another channel than the update of the same weights.
  Plan& evaluate = ToyPlan(toy, "evaluate")
                       .compute("score", 10, {"w1", "w2", "w3"}, {"loss"})
                       .task({.name = "copy", .channel = "reduce", .reads = {"w2", "w3"}, .writes = {"kept"}})
                       .build();
  for (Plan* plan : {&train, &evaluate}) finish(toy, *plan);
  Job job;
  job.channels = toy.channels;
  const Counts counts = check_waits(job, {&train, &train, &evaluate, &train, &evaluate, &evaluate, &train, &train});
  CHECK(counts.waits > 0);
  CHECK(counts.second > 0);
}

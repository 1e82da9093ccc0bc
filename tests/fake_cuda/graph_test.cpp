// SPDX-License-Identifier: Apache-2.0
// The laws of graphs on the cuda device over the fake runtime: recorded works do not run, replayed ones keep their
// order, and a launch is a barrier without a wait of the host.

#include "engine/base/philox.h"
#include "engine/device/cuda/cuda_device.h"
#include "tests/contract/stream_contract.h"
#include "tests/fake_cuda/fake_cuda.h"

using namespace slipstream;
using contract::StreamFixture;

namespace {

void as_kernel(LaunchContext& context, std::function<void()> body) {
  fake_cuda::enqueue(static_cast<cudaStream_t>(context.native_stream), std::move(body));
}

/// Stream compute runs 0, and then 2 after 1 of stream comm, which runs after 0.
struct Step {
  Step() : f((fake_cuda::reset(), make_cuda_device(0)), as_kernel) {
    compute = f.device->make_stream({.name = "compute"});
    comm = f.device->make_stream({.name = "comm", .high_priority = true});
    other = f.device->make_stream({.name = "other"});
    forward = f.device->make_event(1);
    reduced = f.device->make_event(2);
    ended = f.device->make_event(3);
    for (int i = 0; i < 8; ++i) f.work(i, i == 1 ? 2000 : 0);
  }
  void issue() {
    compute->launch(f.works[0], f.frame);
    compute->record(*forward);
    comm->wait(*forward, f.frame);
    comm->launch(f.works[1], f.frame);
    comm->record(*reduced);
    compute->wait(*reduced, f.frame);
    compute->launch(f.works[2], f.frame);
    compute->record(*ended);
  }
  std::unique_ptr<Graph> record(GraphSpans spans = GraphSpans::of_works) {
    return f.device->capture(
        *compute, [&] { issue(); }, spans);
  }
  void synchronize() {
    for (Stream* stream : {compute.get(), comm.get(), other.get()}) stream->synchronize();
  }
  std::vector<int> ran() const { return {f.ran.begin(), f.ran.begin() + static_cast<long>(f.count)}; }

  StreamFixture f;
  std::unique_ptr<Stream> compute, comm, other;
  std::unique_ptr<Event> forward, reduced, ended;
};

using Order = std::vector<int>;

/// Works on three streams that add to a few numbers and multiply them, each after the latest ones that used its two
/// numbers.
struct Sums {
  static constexpr size_t kWorks = 60, kNumbers = 6;

  explicit Sums(std::unique_ptr<Device> made) : device(std::move(made)), works(kWorks), numbers(kNumbers) {
    for (const char* name : {"a", "b", "c"}) streams.push_back(device->make_stream({.name = name}));
    for (size_t i = 0; i < kWorks; ++i) {
      events.push_back(device->make_event(i));
      works[i].name = "work " + std::to_string(i);
      works[i].fn = [this, i](LaunchContext& context) {
        const auto body = [this, i] {
          if (draw(i, 3, 4) == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
          numbers[draw(i, 1, kNumbers)] = 31 * numbers[draw(i, 1, kNumbers)] + numbers[draw(i, 2, kNumbers)] + i;
        };
        context.kind == DeviceKind::cuda ? as_kernel(context, body) : body();
      };
    }
  }
  static size_t draw(size_t work, uint64_t what, size_t below) {
    return static_cast<size_t>(Philox(what, "sums").below(work, below));
  }
  void issue() {
    std::vector<Event*> last(kNumbers);
    for (size_t i = 0; i < kWorks; ++i) {
      Stream& stream = *streams[draw(i, 4, streams.size())];
      for (const uint64_t what : {1u, 2u}) {
        Event*& touched = last[draw(i, what, kNumbers)];
        if (touched) stream.wait(*touched, {});
        touched = events[i].get();
      }
      stream.launch(works[i], {});
      stream.record(*events[i]);
    }
  }
  void synchronize() {
    for (const auto& stream : streams) stream->synchronize();
  }
  std::vector<uint64_t> values() const { return {numbers.begin(), numbers.end()}; }

  std::unique_ptr<Device> device;
  std::vector<Work> works;
  std::vector<std::atomic<uint64_t>> numbers;  // so that a wait that is missing is no undefined behaviour
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Event>> events;
};

/// The results of three recorded steps.
std::vector<uint64_t> replayed_sums() {
  Sums sums(make_cuda_device(0));
  const auto graph = sums.device->capture(
      *sums.streams[0], [&] { sums.issue(); }, GraphSpans::of_items);
  for (uint32_t step = 1; step < 4; ++step) graph->launch(step);
  sums.synchronize();
  return sums.values();
}

}  // namespace

TEST_CASE("a graph records one event for the works of an item up to a record or a wait, or one for each work") {
  constexpr uint32_t kStep = 7;
  const auto spans_of = [](GraphSpans kind, int& records) {
    Step s;
    s.f.work(0, 20000);  // comm waits for it long enough for a span
    const Frame first{.memory = s.f.frame.memory, .item = 1}, second{.memory = s.f.frame.memory, .item = 2};
    const int before = fake_cuda::counts().records;
    const auto graph = s.f.device->capture(
        *s.compute,
        [&] {
          for (int i : {0, 3, 4}) s.compute->launch(s.f.works[static_cast<size_t>(i)], first);
          s.compute->record(*s.forward);
          s.comm->wait(*s.forward, second);
          s.comm->launch(s.f.works[1], second);
          s.comm->record(*s.reduced);
          s.compute->launch(s.f.works[5], first);
          s.compute->wait(*s.reduced, first);
          for (int i : {6, 7}) s.compute->launch(s.f.works[static_cast<size_t>(i)], first);
          s.compute->launch(s.f.works[2], second);
        },
        kind);
    records = fake_cuda::counts().records - before;
    graph->launch(kStep);
    s.synchronize();
    CHECK(s.ran().size() == 8);
    std::vector<std::vector<Span>> spans(2);
    s.compute->drain(spans[0]);
    s.comm->drain(spans[1]);
    for (const auto& of_stream : spans)
      for (const Span& span : of_stream) CHECK((span.step == kStep && span.begin_ns <= span.end_ns));
    return spans;
  };
  int of_works = 0, of_items = 0;
  const auto works = spans_of(GraphSpans::of_works, of_works), items = spans_of(GraphSpans::of_items, of_items);
  // compute has five nodes by items: item 1 up to its record, item 1 up to its wait, the wait, item 1 again, and item
  // 2; by works it has seven and the wait.
  CHECK((works[0].size() == 8 && works[1].size() == 2));
  REQUIRE((items[0].size() == 5 && items[1].size() == 2));
  CHECK(of_works - of_items == 3);
  using Kind = Span::Kind;
  const Kind kinds[] = {Kind::work, Kind::work, Kind::wait, Kind::work, Kind::work};
  const uint32_t numbers[] = {1, 1, 1, 1, 2};
  for (size_t i = 0; i < 5; ++i) {
    CHECK((items[0][i].kind == kinds[i] && items[0][i].item == numbers[i]));
    if (i > 0) CHECK(items[0][i].begin_ns == items[0][i - 1].end_ns);
  }
  // The wait covers the other stream's work.
  CHECK(items[0][2].end_ns >= items[1][1].end_ns);
}

TEST_CASE("a recorded step runs when it is launched, as often as it is launched, without a wait of the host") {
  Step s;
  s.issue();
  s.synchronize();
  CHECK(s.ran() == Order{0, 1, 2});
  const int events = fake_cuda::counts().events;
  auto graph = s.record();
  CHECK(s.ran() == Order{0, 1, 2});
  const int waits = fake_cuda::counts().host_waits;
  graph->launch(1);
  CHECK(fake_cuda::counts().host_waits == waits);
  CHECK(fake_cuda::counts().events > events);  // marks of the graph's own
  s.ended->synchronize();
  CHECK(s.ran() == Order{0, 1, 2, 0, 1, 2});
  const int marked = fake_cuda::counts().events;
  for (uint32_t step = 2; step < 10; ++step) {
    graph->launch(step);
    s.ended->synchronize();
  }
  CHECK(s.f.count == 30);
  CHECK(fake_cuda::counts().events == marked);  // replaying makes nothing
}

TEST_CASE("replayed commands have the priority of their streams, like those that are issued one by one") {
  Step s;
  std::vector<int> priorities;
  for (int i = 0; i < 3; ++i)
    s.f.works[static_cast<size_t>(i)].fn = [&](LaunchContext& c) {
      as_kernel(c, [&] { priorities.push_back(fake_cuda::priority_now()); });
    };
  s.issue();
  s.synchronize();
  REQUIRE(priorities.size() == 3);
  CHECK(priorities[1] < priorities[0]);  // lower numbers go first
  auto graph = s.record();
  const std::vector<int> issued = std::exchange(priorities, {});
  graph->launch(1);
  s.synchronize();
  CHECK(priorities == issued);
}

TEST_CASE("a graph launch is a barrier between all earlier and all later commands") {
  Step s;
  auto graph = s.record();
  s.f.work(4, 3000);
  s.other->launch(s.f.works[4], s.f.frame);  // a slow one on a stream that the graph does not use
  graph->launch(1);
  s.other->launch(s.f.works[5], s.f.frame);
  s.comm->launch(s.f.works[6], s.f.frame);
  s.compute->launch(s.f.works[7], s.f.frame);
  s.synchronize();
  const Order ran = s.ran();
  REQUIRE(ran.size() == 7);
  CHECK(Order(ran.begin(), ran.begin() + 4) == Order{4, 0, 1, 2});
  // Two graphs in turn keep their order without any wait between them.
  auto second = s.record();
  s.f.count = 0;
  for (uint32_t step = 2; step < 4; ++step) (step % 2 ? second : graph)->launch(step);
  s.synchronize();
  CHECK(s.ran() == Order{0, 1, 2, 0, 1, 2});
}

TEST_CASE("the waits of a recorded step, and nothing else, order its streams") {
  fake_cuda::reset();
  Sums cpu(make_cpu_device());
  for (int step = 0; step < 3; ++step) {
    cpu.issue();
    cpu.synchronize();
  }
  for (int i = 0; i < 5; ++i) CHECK(replayed_sums() == cpu.values());
  fake_cuda::settings().drop_captured_waits = true;
  CHECK(replayed_sums() != cpu.values());
}

TEST_CASE("events of a graph are those of its latest launch") {
  Step s;
  auto graph = s.record();
  CHECK(s.ended->query());  // never recorded
  graph->launch(1);
  s.other->wait(*s.reduced, s.f.frame);
  s.other->launch(s.f.works[5], s.f.frame);
  s.other->synchronize();
  CHECK(s.ran() == Order{0, 1, 2, 5});
  const int64_t first_ns = s.ended->completed_ns();
  graph->launch(2);
  s.ended->synchronize();
  CHECK(s.ran() == Order{0, 1, 2, 5, 0, 1, 2});
  CHECK(s.ended->completed_ns() > first_ns);
  // Once a stream has recorded it, it is an event like any other.
  s.compute->record(*s.ended);
  s.ended->synchronize();
}

TEST_CASE("spans of a replay have the step of the launch and the times of the run") {
  Step s;
  auto graph = s.record();
  int64_t last_end_ns = 0;
  for (uint32_t step : {7u, 8u, 9u}) {
    graph->launch(step);
    if (step == 8) continue;  // a step that is not read before the next launch is kept
    s.ended->synchronize();
    std::vector<Span> compute, comm;
    s.compute->drain(compute);
    s.comm->drain(comm);
    const size_t runs = step == 9 ? 2 : 1;
    REQUIRE(compute.size() == 3 * runs);  // work, wait, work
    REQUIRE(comm.size() >= runs);
    for (size_t i = 0; i < compute.size(); ++i) {
      CHECK(compute[i].step == (i < 3 && step == 9 ? 8 : step));
      CHECK(compute[i].begin_ns >= last_end_ns);
      last_end_ns = compute[i].end_ns;
    }
    const Span& waited = compute[3 * runs - 2];
    CHECK(waited.kind == Span::Kind::wait);
    CHECK(waited.awaited == 2);
    CHECK(waited.end_ns - waited.begin_ns > 1'500'000);  // the two milliseconds of work 1
    CHECK(comm.back().work == &s.f.works[1]);
    CHECK(comm.back().begin_ns >= waited.begin_ns);
    CHECK(comm.back().end_ns <= waited.end_ns);
  }
}

TEST_CASE("a destroyed graph leaves the times of its runs") {
  Step s;
  auto graph = s.record();
  graph->launch(7);
  s.ended->synchronize();
  graph.reset();
  s.issue();
  s.synchronize();
  std::vector<Span> compute;
  s.compute->drain(compute);
  REQUIRE(compute.size() == 6);
  CHECK(compute[0].step == 7);
  CHECK(compute[0].work == &s.f.works[0]);
  CHECK(compute[2].end_ns <= compute[3].begin_ns);
}

TEST_CASE("a graph destroyed before its launch leaves its events as recorded") {
  Step s;
  s.record().reset();
  s.other->wait(*s.reduced, s.f.frame);
  s.other->launch(s.f.works[5], s.f.frame);
  s.synchronize();
  s.issue();
  s.synchronize();
  CHECK(s.ended->query());
  CHECK(s.ran() == Order{5, 0, 1, 2});
}

TEST_CASE("work that cannot be recorded causes one warning and runs without a graph") {
  Step s;
  s.issue();
  const auto recordable = std::exchange(s.f.works[1].fn, [&](LaunchContext&) { s.f.device->allocate(100, "more"); });
  const auto refused = GENERATE(1, 2);  // the first capture, or a later one
  for (int i = 0; i < refused; ++i) CHECK_THROWS_WITH(s.record(), Catch::Contains("[cuda]"));
  s.f.works[1].fn = recordable;
  s.issue();
  s.compute->launch(s.f.works[3], s.f.frame);
  s.synchronize();
  CHECK(s.ran() == Order{0, 1, 2, 0, 1, 2, 3});
  CHECK(s.reduced->query());
  s.record()->launch(4);
  s.synchronize();
  CHECK(s.ran() == Order{0, 1, 2, 0, 1, 2, 3, 0, 1, 2});
}

TEST_CASE("the host part of a work runs once in the caller, the stream part in every replay") {
  Step s;
  int prepared = 0, called = 0, on_host = 0;
  s.f.works[1].prepare = [&](LaunchContext&) { ++prepared; };
  s.f.works[1].fn = [&](LaunchContext& c) {
    ++called;
    c.on_host([&] { ++on_host; });
  };
  s.issue();
  s.synchronize();
  CHECK(std::tuple(prepared, called, on_host) == std::tuple(0, 1, 1));
  auto graph = s.record();
  CHECK(std::tuple(prepared, called, on_host) == std::tuple(0, 2, 1));
  for (uint32_t step = 1; step < 4; ++step) graph->launch(step);
  s.synchronize();
  CHECK(std::tuple(prepared, called, on_host) == std::tuple(0, 2, 4));
}

TEST_CASE("a device without graphs calls nothing") {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream({.name = "compute"});
  CHECK(device->capture(
            *stream, [] { throw std::logic_error("called"); }, GraphSpans::of_works) == nullptr);
}

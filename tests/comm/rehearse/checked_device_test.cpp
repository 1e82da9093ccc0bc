// SPDX-License-Identifier: Apache-2.0
// The laws of the live checker, on streams of the cpu device and (tests/fake_cuda) of the cuda device: what orders two
// accesses, what does not, and the error text.

#include "comm/rehearse/checked_device.h"

#include <deque>

#include "engine/base/check.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::comm;

#ifndef SLIP_DEVICE_UNDER_TEST
#define SLIP_DEVICE_UNDER_TEST make_cpu_device()
#endif

namespace {

/// Works that do nothing, on buffers of 64 bytes each, and one stream for each letter.
struct Bench {
  Buffers buffers;
  BufferId x = buffers.add({.name = "x", .size_bytes = 64}), y = buffers.add({.name = "y", .size_bytes = 64});
  std::unique_ptr<Device> device = make_checked_device(SLIP_DEVICE_UNDER_TEST, buffers);
  std::unique_ptr<Stream> a = device->make_stream({.name = "a"}), b = device->make_stream({.name = "b"}),
                          c = device->make_stream({.name = "c"});
  std::unique_ptr<Event> event = device->make_event(), other = device->make_event();
  std::deque<Work> works;
  Memory memory;

  Slice whole(BufferId buffer) const { return {buffer, 0, 64}; }
  void launch(Stream& stream, const std::string& name, std::vector<Slice> reads, std::vector<Slice> writes,
              uint32_t step = 0) {
    works.push_back(
        {.name = name, .reads = std::move(reads), .writes = std::move(writes), .fn = [](LaunchContext&) {}});
    stream.launch(works.back(), {.memory = &memory, .step = step});
  }
  void reads(Stream& stream, BufferId buffer) { launch(stream, "reader", {whole(buffer)}, {}); }
  void writes(Stream& stream, BufferId buffer) { launch(stream, "writer", {}, {whole(buffer)}); }
};

template <typename Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const PlanError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("two reads need no order; a write after a read, a read after a write and a write after a write do",
          "[hazards]") {
  for (bool first_writes : {false, true})
    for (bool second_writes : {false, true})
      for (bool waits : {false, true}) {
        CAPTURE(first_writes, second_writes, waits);
        Bench bench;
        first_writes ? bench.writes(*bench.a, bench.x) : bench.reads(*bench.a, bench.x);
        bench.a->record(*bench.event);
        if (waits) bench.b->wait(*bench.event, {});
        const std::string text =
            error_of([&] { second_writes ? bench.writes(*bench.b, bench.x) : bench.reads(*bench.b, bench.x); });
        CHECK(text.empty() == (waits || (!first_writes && !second_writes)));
      }
}

TEST_CASE("the host copies only when it has waited for every stream that was given work", "[hazards]") {
  for (bool to_host : {true, false})
    for (int waited : {0, 1, 2}) {
      CAPTURE(to_host, waited);
      Bench bench;
      const auto memory = bench.device->allocate(64, "x");
      std::vector<std::byte> host(64);
      const auto copy = [&] {
        to_host ? bench.device->copy_to_host(host.data(), memory->data(), 64)
                : bench.device->copy_from_host(memory->data(), host.data(), 64);
      };
      CHECK(error_of(copy).empty());
      bench.writes(*bench.a, bench.x);
      bench.reads(*bench.b, bench.y);
      if (waited > 0) bench.a->synchronize();
      if (waited > 1) bench.b->synchronize();
      const std::string text = error_of(copy);
      CHECK(text.empty() == (waited == 2));
      if (waited < 2) CHECK(text.find(waited == 0 ? "writer (channel a" : "reader (channel b") != std::string::npos);
    }
}

TEST_CASE("an event recorded too early does not order later work, and the error names its position", "[hazards]") {
  Bench bench;
  bench.launch(*bench.a, "early", {}, {bench.whole(bench.y)}, 7);
  bench.a->record(*bench.event);
  bench.launch(*bench.a, "late", {}, {{bench.x, 8, 24}}, 7);
  bench.launch(*bench.a, "later", {}, {}, 7);
  bench.a->record(*bench.other);
  bench.b->wait(*bench.event, {});
  CHECK(error_of([&] { bench.reads(*bench.b, bench.y); }) == "");
  CHECK(error_of([&] {
          bench.launch(*bench.b, "user", {{bench.x, 16, 32}}, {}, 8);
        }) ==
        "[hazard] user (channel b, step 8) reads x bytes 16..32 while late (channel a, step 7) may still be writing "
        "them: add a wait of "
        "user for late. The nearest event is that of later; of channel a it waits for nothing after early.");
  bench.b->wait(*bench.other, {});
  CHECK(error_of([&] { bench.launch(*bench.b, "user", {{bench.x, 16, 32}}, {}, 8); }) == "");
}

TEST_CASE("a chain of ten events orders its ends, and no order is left without one of its waits", "[hazards]") {
  for (int missing : {-1, 0, 4, 9}) {
    CAPTURE(missing);
    Bench bench;
    std::vector<std::unique_ptr<Stream>> streams;
    std::vector<std::unique_ptr<Event>> events;
    for (int i = 0; i < 11; ++i) {
      streams.push_back(bench.device->make_stream({.name = std::to_string(i)}));
      events.push_back(bench.device->make_event());
      if (i > 0 && missing != i - 1) streams.back()->wait(*events[static_cast<size_t>(i - 1)], {});
      if (i == 0) bench.writes(*streams.back(), bench.x);
      streams.back()->record(*events.back());
    }
    CHECK(error_of([&] { bench.reads(*streams.back(), bench.x); }).empty() == (missing < 0));
  }
}

TEST_CASE("a wait is for the record that is most recent when it is enqueued", "[hazards]") {
  Bench bench;
  bench.a->record(*bench.event);
  bench.b->wait(*bench.event, {});
  bench.writes(*bench.a, bench.x);
  bench.a->record(*bench.event);  // recorded again after the write: too late for b, but in time for c
  bench.c->wait(*bench.event, {});
  CHECK(error_of([&] { bench.reads(*bench.c, bench.x); }) == "");
  CHECK(error_of([&] { bench.reads(*bench.b, bench.x); }) != "");
  Bench moved;  // recorded again on another stream: the first record no longer counts
  moved.writes(*moved.a, moved.x);
  moved.a->record(*moved.event);
  moved.c->record(*moved.event);
  moved.b->wait(*moved.event, {});
  CHECK(error_of([&] { moved.reads(*moved.b, moved.x); }) != "");
  Bench never;
  never.writes(*never.a, never.x);
  never.b->wait(*never.event, {});
  CHECK(error_of([&] { never.reads(*never.b, never.x); }).find("No event is recorded after it") != std::string::npos);
}

TEST_CASE("waits for two streams join: one of them is not enough", "[hazards]") {
  for (int waits : {0, 1, 2, 3}) {
    CAPTURE(waits);
    Bench bench;
    bench.writes(*bench.a, bench.x);
    bench.a->record(*bench.event);
    bench.writes(*bench.b, bench.y);
    bench.b->record(*bench.other);
    if (waits & 1) bench.c->wait(*bench.event, {});
    if (waits & 2) bench.c->wait(*bench.other, {});
    CHECK(error_of([&] {
            bench.launch(*bench.c, "both", {bench.whole(bench.x), bench.whole(bench.y)}, {});
          }).empty() == (waits == 3));
  }
}

TEST_CASE("work that the host has waited for is complete for all later launches", "[hazards]") {
  for (int how : {0, 1, 2, 3}) {
    CAPTURE(how);
    Bench bench;
    bench.writes(*bench.a, bench.x);
    bench.a->record(*bench.event);
    if (how == 1) bench.event->synchronize();
    if (how == 2) bench.a->synchronize();
    if (how == 3)
      while (!bench.event->query()) {
      }
    CHECK(error_of([&] { bench.reads(*bench.b, bench.x); }).empty() == (how > 0));
  }
}

TEST_CASE("memory that was released must not be used: the next tenant's write conflicts with a use after the release",
          "[hazards]") {
  Bench bench;
  bench.launch(*bench.a, "use", {bench.whole(bench.x)}, {});
  bench.a->record(*bench.event);  // the release
  bench.launch(*bench.a, "use after release", {bench.whole(bench.x)}, {});
  bench.b->wait(*bench.event, {});
  CHECK(error_of([&] {
          bench.launch(*bench.b, "next tenant", {}, {bench.whole(bench.x)});
        }).find("while use after release (channel a, step 0) may still be reading them") != std::string::npos);
}

TEST_CASE("instances and rebinds are different bytes, views are the same", "[hazards]") {
  Bench bench;
  bench.buffers.micro_batches = 2;
  const BufferId act = bench.buffers.add({.name = "act", .size_bytes = 64, .instances = Instances::per_micro_batch});
  const BufferId view = bench.buffers.add({.name = "view", .size_bytes = 32});
  bench.buffers.set_view(view, {bench.x, 32, 32});
  const std::vector<Rebind> rebinds{{bench.y, {bench.x, 0, 64}}};
  const auto launch = [&](Stream& stream, Slice slice, Frame frame) {
    bench.works.push_back({.name = "w", .writes = {slice}, .fn = [](LaunchContext&) {}});
    frame.memory = &bench.memory;
    return error_of([&] { stream.launch(bench.works.back(), frame); });
  };
  CHECK(launch(*bench.a, {act, 0, 64}, {.micro_batch = 0}) == "");
  CHECK(launch(*bench.b, {act, 0, 64}, {.micro_batch = 1}) == "");
  CHECK(launch(*bench.c, {act, 0, 64}, {.micro_batch = 1}) != "");
  CHECK(launch(*bench.a, {bench.x, 0, 64}, {}) == "");
  CHECK(launch(*bench.b, {view, 0, 32}, {}).find("x bytes 32..64") != std::string::npos);
  CHECK(launch(*bench.b, {bench.y, 0, 64}, {}) == "");
  CHECK(launch(*bench.b, {bench.y, 0, 64}, {.rebinds = rebinds.data(), .rebind_count = 1}) != "");
}

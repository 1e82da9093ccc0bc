// SPDX-License-Identifier: Apache-2.0
// What streams and events cost on the cpu device: per call on the host, and per task with two predecessors.

#include <cstdio>
#include <vector>

#include "engine/device/clock.h"
#include "engine/device/device.h"

using namespace slipstream;

namespace {

const Frame kFrame;
const Work kNothing{.name = "nothing", .fn = [](LaunchContext&) {}};

void bench_calls(int count) {
  const auto device = make_cpu_device();
  const auto a = device->make_stream({.name = "a"});
  const auto b = device->make_stream({.name = "b"});
  const auto event = device->make_event(1);
  for (int round = 0; round < 3; ++round) {
    int64_t begin = monotonic_ns();
    for (int i = 0; i < count; ++i) a->launch(kNothing, kFrame);
    const int64_t launch = monotonic_ns() - begin;
    a->synchronize();
    begin = monotonic_ns();
    for (int i = 0; i < count; ++i) a->record(*event);
    const int64_t record = monotonic_ns() - begin;
    a->synchronize();
    begin = monotonic_ns();
    for (int i = 0; i < count; ++i) b->wait(*event, kFrame);
    const int64_t wait = monotonic_ns() - begin;
    b->synchronize();
    if (round == 2)
      std::printf("host, ns per call: launch %.0f, record %.0f, wait %.0f\n", static_cast<double>(launch) / count,
                  static_cast<double>(record) / count, static_cast<double>(wait) / count);
  }
}

/// Task i waits for tasks i - near and i - far; near 1 is a chain, in which every task is a hand-over between threads.
void bench_tasks(int tasks, int streams, int near, int far) {
  const auto device = make_cpu_device();
  std::vector<std::unique_ptr<Stream>> made;
  for (int i = 0; i < streams; ++i) made.push_back(device->make_stream({.name = "s" + std::to_string(i)}));
  std::vector<std::unique_ptr<Event>> events;
  for (int i = 0; i < tasks; ++i) events.push_back(device->make_event(static_cast<uint64_t>(i)));
  std::vector<Span> spans;
  for (int round = 0; round < 3; ++round) {
    const int64_t begin = monotonic_ns();
    for (int i = 0; i < tasks; ++i) {
      Stream& stream = *made[static_cast<size_t>(i % streams)];
      if (i >= near) stream.wait(*events[static_cast<size_t>(i - near)], kFrame);
      if (i >= far) stream.wait(*events[static_cast<size_t>(i - far)], kFrame);
      stream.launch(kNothing, kFrame);
      stream.record(*events[static_cast<size_t>(i)]);
    }
    const int64_t issued = monotonic_ns() - begin;
    for (const auto& stream : made) stream->synchronize();
    const int64_t all = monotonic_ns() - begin;
    spans.clear();
    for (const auto& stream : made) stream->drain(spans);
    std::printf("%d tasks on %d streams behind tasks -%d and -%d: %.2f us per task (%.2f us to issue), %zu spans\n", tasks,
                streams, near, far, static_cast<double>(all) / tasks * 1e-3, static_cast<double>(issued) / tasks * 1e-3, spans.size());
  }
}

}  // namespace

int main() {
  bench_calls(100000);
  bench_tasks(10000, 4, 1, 2);
  bench_tasks(10000, 4, 5, 7);
  bench_tasks(10000, 4, 41, 42);
}

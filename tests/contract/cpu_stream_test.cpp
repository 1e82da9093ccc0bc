// SPDX-License-Identifier: Apache-2.0
// The stream contract on the cpu device, and the cpu device's own laws.

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "engine/base/philox.h"
#include "tests/contract/stream_contract.h"

using namespace slipstream;

TEST_CASE("the cpu device keeps the stream contract") { contract::check_stream_contract(make_cpu_device); }

TEST_CASE("a wait for completed work leaves no span") {
  const auto device = make_cpu_device();
  const auto a = device->make_stream({.name = "a"});
  const auto b = device->make_stream({.name = "b"});
  const auto event = device->make_event(1);
  a->record(*event);
  event->synchronize();
  const Frame frame;
  b->wait(*event, frame);
  b->synchronize();
  std::vector<Span> spans;
  b->drain(spans);
  CHECK(spans.empty());
}

TEST_CASE("a stream has the threads that it was asked for") {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream({.name = "a", .threads = 3});
  // Every part keeps its thread until all three have begun, so that none takes the part of another.
  std::mutex mutex;
  std::set<std::thread::id> ids;
  std::atomic<int> begun{0};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  Work work{.name = "wide", .fn = [&](LaunchContext& context) {
              context.parallel_for(3, 1, [&](int64_t, int64_t) {
                ++begun;
                while (begun < 3 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
                std::lock_guard lock(mutex);
                ids.insert(std::this_thread::get_id());
              });
            }};
  const Frame frame;
  stream->launch(work, frame);
  stream->synchronize();
  CHECK(ids.size() == 3);
}

TEST_CASE("delays are a function of seed, stream name and count") {
  const auto times = [](uint64_t seed, const char* name) {
    const auto device = make_cpu_device();
    const auto stream = device->make_stream({.name = name});
    device->inject_delays(seed, 3000000);
    Work work{.name = "w", .fn = [](LaunchContext&) {}};
    const Frame frame;
    for (int i = 0; i < 20; ++i) stream->launch(work, frame);
    stream->synchronize();
    std::vector<Span> spans;
    stream->drain(spans);
    // Sleeps may be longer, never shorter: the sum of the gaps bounds the sum of the pauses from above.
    return spans.back().end_ns - spans.front().begin_ns;
  };
  const Philox random(5, "a");
  int64_t least = 0;
  for (uint64_t i = 1; i < 20; ++i) least += static_cast<int64_t>(random.below(i, 3000001));
  CHECK(times(5, "a") >= least);
}

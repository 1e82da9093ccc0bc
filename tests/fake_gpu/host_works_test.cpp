// SPDX-License-Identifier: Apache-2.0
// Works of the host between commands of CUDA streams: they see what the commands before them wrote, later commands wait
// for them, and they hold up no function that another stream calls.

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/check.h"
#include "kernels/step_scalars/step_scalars.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/test.hpp"
#include "trainer/runtime/rank/host_works.h"

using namespace slipstream;
using runtime::HostWorks;

namespace {

constexpr int kSteps = 12;
constexpr size_t kBytes = 4096;

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

/// The waits of a snapshot: the copy waits for the state, the transfer for the copy, and the next state and the next
/// copy for what still reads their memory.
const std::vector<std::string> kWaits = {"", "copy for state", "transfer for copy", "state for copy",
                                         "copy for transfer"};

/// The state on the device changes every step and is copied to one host buffer, which a work of the host reads. Leaves
/// out one kind of wait. Returns what the work saw.
std::vector<int> snapshots(const std::string& left_out) {
  const std::unique_ptr<Device> device = make_cuda_device(0);
  std::vector<int> seen;
  {
    const auto state = device->allocate(kBytes, "state"), states = device->allocate_host(kSteps * kBytes, "states");
    std::vector<std::byte> held(2 * kBytes);
    const std::shared_ptr<void> pinned = device->pin(held.data(), std::ssize(held));
    for (int k = 0; k < kSteps; ++k) std::memset(states->data() + k * kBytes, k + 1, kBytes);
    const auto compute = device->make_stream({.name = "compute"}), keep = device->make_stream({.name = "keep"}),
               peer = device->make_stream({.name = "peer"});
    const auto updated = device->make_event(1), copied = device->make_event(2), sent = device->make_event(3);
    const auto host = std::make_shared<HostWorks>("peer", *device);
    // Slow in turns, so that each wait is the one that matters in some step.
    const auto slow = [&](int turn) {
      return Work{.name = "slow", .fn = [turn](LaunchContext& c) {
                    if (static_cast<int>(c.frame->step) % 4 == turn) c.on_host([] { sleep_ms(4); });
                  }};
    };
    const Work slow_compute = slow(0), slow_keep = slow(1);
    const Work update{
        .name = "update", .fn = [&](LaunchContext& c) {
          kernels::copy(
              c, {.from = states->data() + (c.frame->step - 1) * kBytes, .to = state->data(), .size_bytes = kBytes});
        }};
    const Work copy{.name = "copy", .fn = [&](LaunchContext& c) {
                      kernels::copy(c, {.from = state->data(), .to = held.data(), .size_bytes = kBytes});
                    }};
    const Work transfer = host->on_stream({.name = "transfer", .fn = [&](LaunchContext& c) {
                                             if (c.frame->step % 4 == 2) sleep_ms(12);
                                             int value = static_cast<int>(held[0]);
                                             for (size_t i = 1; i < kBytes; ++i)
                                               if (held[i] != held[0]) value = -1;
                                             seen.push_back(value);
                                           }});
    for (uint32_t step = 1; step <= kSteps; ++step) {
      const Frame frame{.step = step};
      if (left_out != "state for copy") compute->wait(*copied, frame);
      compute->launch(slow_compute, frame);
      compute->launch(update, frame);
      compute->record(*updated);
      if (left_out != "copy for state") keep->wait(*updated, frame);
      if (left_out != "copy for transfer") keep->wait(*sent, frame);
      keep->launch(slow_keep, frame);
      keep->launch(copy, frame);
      keep->record(*copied);
      if (left_out != "transfer for copy") peer->wait(*copied, frame);
      peer->launch(transfer, frame);
      peer->record(*sent);
    }
    for (Stream* stream : {compute.get(), keep.get(), peer.get()}) stream->synchronize();
  }
  return seen;
}

}  // namespace

TEST_CASE("a host work reads a snapshot when its copy is done, and the next copy waits for it", "[cuda]") {
  std::vector<int> expected;
  for (int step = 1; step <= kSteps; ++step) expected.push_back(step);
  for (const std::string& left_out : kWaits) {
    INFO("without: " << left_out);
    CHECK((snapshots(left_out) == expected) == left_out.empty());
  }
  CHECK(fake_cuda::counts().pinned_blocks == 0);
}

TEST_CASE("a waiting host work holds up no function that another stream calls", "[cuda]") {
  const std::unique_ptr<Device> device = make_cuda_device(0);
  const auto stream = device->make_stream({.name = "peer"}), other = device->make_stream({.name = "other"});
  const auto host = std::make_shared<HostWorks>("peer", *device);
  std::mutex mutex;
  std::condition_variable changed;
  bool called = false, in_time = false;
  const Work waits = host->on_stream({.name = "waits", .fn = [&](LaunchContext&) {
                                        std::unique_lock lock(mutex);
                                        in_time =
                                            changed.wait_for(lock, std::chrono::seconds(20), [&] { return called; });
                                      }});
  const Work calls{.name = "calls", .fn = [&](LaunchContext& c) {
                     c.on_host([&] {
                       const std::lock_guard lock(mutex);
                       called = true;
                       changed.notify_all();
                     });
                   }};
  const Frame frame{.step = 1};
  stream->launch(waits, frame);
  sleep_ms(5);
  other->launch(calls, frame);
  stream->synchronize();
  CHECK(in_time);
}

TEST_CASE("a host work that throws ends the stream's waits, and the next launch has its error", "[cuda]") {
  const std::unique_ptr<Device> device = make_cuda_device(0);
  const auto stream = device->make_stream({.name = "peer"});
  const auto host = std::make_shared<HostWorks>("peer", *device);
  int later = 0;
  const Work throws =
      host->on_stream({.name = "throws", .fn = [](LaunchContext&) { throw CommError("[test] gone."); }});
  const Work counts = host->on_stream({.name = "counts", .fn = [&](LaunchContext&) { ++later; }});
  const Frame frame{.step = 1};
  stream->launch(throws, frame);
  stream->synchronize();
  stream->launch(counts, frame);
  CHECK_THROWS_WITH(stream->synchronize(), "[test] gone.");
  CHECK(later == 0);
}

// SPDX-License-Identifier: Apache-2.0
// Uploads from host to device during a step, over the fake runtime: every step sees its own bytes, without waits.

#include <cstring>
#include <thread>
#include <vector>

#include "engine/device/device.h"
#include "kernels/step_scalars/step_scalars.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

/// A device of two buffers (the destinations) and a work that uploads a growing number into both.
struct Uploads {
  Uploads() : device((fake_cuda::reset(), make_cuda_device(0))), stream(device->make_stream({.name = "h2d"})) {
    batch = device->allocate(40, "batch");
    scalars = device->allocate(16, "scalars");
    work.name = "load";
    args = {.parts = {{{batch->data(), 40}, {scalars->data(), 16}}},
            .fill =
                [this](const auto& to) {
                  ++step;
                  std::memset(to[0], step, 40);
                  std::memset(to[1], step + 100, 16);
                },
            .staging = kernels::make_upload_staging()};
    work.fn = [this](LaunchContext& context) { kernels::upload(context, args); };
    work.prepare = [this](LaunchContext& context) { kernels::prepare_upload(context, args); };
  }
  /// Runs the next step: the host's part, and then the stream's.
  void upload_next() {
    ++frame.step;
    LaunchContext host{.kind = DeviceKind::cuda, .frame = &frame};
    work.prepare(host);
    stream->launch(work, frame);
  }
  /// The device's contents.
  std::pair<int, int> now() {
    unsigned char a = 0, b = 0;
    device->copy_to_host(&a, batch->data() + 39, 1);
    device->copy_to_host(&b, scalars->data() + 15, 1);
    return {a, b};
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Allocation> batch, scalars;
  kernels::Upload args;
  Work work;
  Frame frame;
  int step = 0;
};

}  // namespace

TEST_CASE("every step sees the bytes of its own upload") {
  Uploads u;
  const auto event = u.device->make_event(1);
  for (int step = 1; step <= 10; ++step) {
    u.upload_next();
    u.stream->record(*event);
    event->synchronize();
    CHECK(u.now() == std::pair(step, step + 100));
  }
}

TEST_CASE("a copy in flight is never overwritten, however far the host runs ahead") {
  Uploads u;
  std::vector<std::pair<int, int>> seen;
  Work slow{.name = "slow", .fn = [](LaunchContext& context) {
              cudaLaunchHostFunc(
                  static_cast<cudaStream_t>(context.native_stream),
                  [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(3)); }, nullptr);
            }};
  std::vector<std::unique_ptr<Allocation>> copies;
  for (int step = 0; step < 12; ++step) copies.push_back(u.device->allocate(40, "copy"));
  std::vector<Work> keep(12);
  for (size_t step = 0; step < 12; ++step) {
    keep[step] = {.name = "keep", .fn = [&, step](LaunchContext& context) {
                    kernels::copy(context, {.from = u.batch->data(), .to = copies[step]->data(), .size_bytes = 40});
                  }};
    u.stream->launch(slow, u.frame);
    u.upload_next();
    u.stream->launch(keep[step], u.frame);
  }
  u.stream->synchronize();
  for (size_t step = 0; step < 12; ++step) CHECK(copies[step]->data()[7] == static_cast<std::byte>(step + 1));
}

TEST_CASE("a host one step ahead never waits for an upload") {
  Uploads u;
  const auto first = u.device->make_event(1);
  const auto second = u.device->make_event(2);
  Event* ends[] = {first.get(), second.get()};
  const int before = fake_cuda::counts().host_waits;
  for (int step = 0; step < 30; ++step) {
    u.upload_next();
    u.stream->record(*ends[step % 2]);
    if (step > 0) ends[(step + 1) % 2]->synchronize();  // the previous step
  }
  CHECK(fake_cuda::counts().host_waits == before + 29);
  u.stream->synchronize();
}

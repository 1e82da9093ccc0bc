// SPDX-License-Identifier: Apache-2.0
// The stream contract on the cuda device over the fake runtime, mutations that it must detect, and laws of the device:
// times, copies, errors and waits.

#include <unistd.h>

#include <atomic>

#include "engine/device/cuda/cuda_device.h"
#include "tests/contract/stream_contract.h"
#include "tests/fake_cuda/fake_cuda.h"

using namespace slipstream;
using contract::StreamFixture;

namespace {

void CUDART_CB run_and_delete(void* body) {
  const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(body));
  (*owned)();
}

/// Passes the body to the stream in the way in which a kernel is passed.
void run_on_stream(LaunchContext& context, std::function<void()> body) {
  cudaLaunchHostFunc(static_cast<cudaStream_t>(context.native_stream), run_and_delete,
                     new std::function<void()>(std::move(body)));
}

StreamFixture fixture() {
  fake_cuda::reset();
  return StreamFixture(make_cuda_device(0), run_on_stream);
}

}  // namespace

TEST_CASE("the cuda device keeps the stream contract") {
  fake_cuda::reset();
  contract::check_stream_contract([] { return make_cuda_device(1); }, run_on_stream);
}

TEST_CASE("a stream that does not wait breaks the contract", "[!shouldfail]") {
  StreamFixture f = fixture();
  fake_cuda::settings().drop_waits = true;
  contract::wait_orders_streams(f);
}

TEST_CASE("an event recorded on another stream breaks the contract", "[!shouldfail]") {
  StreamFixture f = fixture();
  fake_cuda::settings().record_elsewhere = true;
  contract::wait_orders_streams(f);
}

TEST_CASE("issuing waits for nothing") {
  StreamFixture f = fixture();
  const auto a = f.device->make_stream({.name = "a"});
  const auto b = f.device->make_stream({.name = "b", .high_priority = true});
  const auto event = f.device->make_event(1);
  std::vector<Span> spans;
  const int before = fake_cuda::counts().host_waits;
  for (int i = 0; i < 50; ++i) {
    a->launch(f.work(i, 50), f.frame);
    a->record(*event);
    b->wait(*event, f.frame);
    b->launch(f.work(50 + i), f.frame);
    a->drain(spans);
    event->query();
  }
  CHECK(fake_cuda::counts().host_waits == before);
  a->synchronize();
  b->synchronize();
}

TEST_CASE("timing events are used again") {
  StreamFixture f = fixture();
  const auto a = f.device->make_stream({.name = "a"});
  const auto b = f.device->make_stream({.name = "b"});
  const auto event = f.device->make_event(1);
  std::vector<Span> spans;
  const int before = fake_cuda::counts().events;
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 10; ++i) {
      a->launch(f.work(i), f.frame);
      a->record(*event);
      b->wait(*event, f.frame);
      b->launch(f.work(i), f.frame);
    }
    a->synchronize();
    b->synchronize();
    a->drain(spans);
    b->drain(spans);
  }
  // At most a round's marks are in flight: 2 for each work, 1 more for each wait, and one kept at the end of each
  // stream.
  CHECK(fake_cuda::counts().events <= before + 20 + 30 + 2);
  CHECK(std::count_if(spans.begin(), spans.end(), [](const Span& s) { return s.kind == Span::Kind::work; }) == 400);
}

TEST_CASE("all resources are released") {
  fake_cuda::reset();
  const fake_cuda::Counts before = fake_cuda::counts();
  {
    const auto device = make_cuda_device(0);
    const auto stream = device->make_stream({.name = "a"});
    const auto event = device->make_event(1);
    const auto memory = device->allocate(1000, "memory");
    int value = 5;
    device->copy_from_host(memory->data(), &value, sizeof value);
    Work work{.name = "w", .fn = [](LaunchContext&) {}};
    const Frame frame;
    stream->launch(work, frame);
    stream->record(*event);
  }
  const fake_cuda::Counts after = fake_cuda::counts();
  CHECK(after.streams == before.streams);
  CHECK(after.events == before.events);
  CHECK(after.blocks == before.blocks);
  CHECK(after.pinned_blocks == before.pinned_blocks);
}

TEST_CASE("times follow the host's clock while the GPU's clock drifts, and never decrease in a stream") {
  for (double ppm : {-2000.0, 2000.0}) {
    StreamFixture f = fixture();
    fake_cuda::settings().clock_ppm = ppm;
    const auto stream = f.device->make_stream({.name = "a"});
    const int64_t started_ns = f.device->now_ns();
    const int before = fake_cuda::counts().host_waits;
    int waits = 0;
    int64_t last_ns = 0, error_ns = 0;
    while (f.device->now_ns() - started_ns < 4'000'000'000) {
      const int64_t before_ns = f.device->now_ns();
      for (int i = 0; i < 10; ++i) stream->launch(f.work(i, i == 0 ? 2000 : 0), f.frame);
      stream->synchronize();
      ++waits;
      const int64_t after_ns = f.device->now_ns();
      error_ns = 0;
      for (const Span& span : StreamFixture::spans_of(*stream, Span::Kind::work)) {
        CHECK(span.begin_ns >= last_ns);
        CHECK(span.end_ns >= span.begin_ns);
        last_ns = span.end_ns;
        error_ns = std::max({error_ns, before_ns - span.begin_ns, span.end_ns - after_ns});
      }
    }
    CHECK(fake_cuda::counts().host_waits - before == waits);
    // The error is up to 8 ms without readings; with one reading a second it is at most 2 ms, and the host's delay in
    // observing it.
    INFO(ppm << " ppm: " << error_ns << " ns");
    CHECK(error_ns < 4'000'000);
  }
}

TEST_CASE("copies of all sizes keep their bytes") {
  StreamFixture f = fixture();
  constexpr int64_t kPiece = int64_t{4} << 20;
  for (int64_t size : {int64_t{0}, int64_t{1}, kPiece - 1, kPiece, kPiece + 1, 3 * kPiece + 13}) {
    const auto memory = f.device->allocate(size, "memory");
    std::vector<uint32_t> sent(static_cast<size_t>(size / 4 + 1)), back(sent.size());
    for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<uint32_t>(i * 2654435761u);
    f.device->copy_from_host(memory->data(), sent.data(), size);
    f.device->copy_to_host(back.data(), memory->data(), size);
    CHECK(std::memcmp(sent.data(), back.data(), static_cast<size_t>(size)) == 0);
  }
}

TEST_CASE("an error of the GPU gives one message, and the first one is kept") {
  StreamFixture f = fixture();
  const auto a = f.device->make_stream({.name = "a"});
  const auto b = f.device->make_stream({.name = "b"});
  fake_cuda::fail_next("cudaStreamSynchronize", cudaErrorIllegalAddress);
  a->launch(f.work(0), f.frame);
  CHECK_THROWS_WITH(a->synchronize(),
                    Catch::Contains("cudaStreamSynchronize(stream_) at") && Catch::Contains("sanitize"));
  b->launch(f.work(1), f.frame);
  CHECK_THROWS_WITH(b->synchronize(), Catch::Contains("cudaStreamSynchronize"));
  CHECK(f.position(1) == -1);
}

TEST_CASE("a failed allocation names the requested and the free bytes") {
  StreamFixture f = fixture();
  CHECK_THROWS_WITH(f.device->allocate(int64_t{1} << 40, "weights"),
                    Catch::Contains("weights needs") && Catch::Contains("on GPU 0") && Catch::Contains("are free"));
}

TEST_CASE("a query that returns not ready leaves no error") {
  StreamFixture f = fixture();
  const auto stream = f.device->make_stream({.name = "a"});
  const auto event = f.device->make_event(1);
  stream->launch(f.work(0, 2000), f.frame);
  stream->record(*event);
  CHECK_FALSE(event->query());
  stream->launch(f.work(1), f.frame);  // checks for an error of its launch
  stream->synchronize();
  CHECK(f.position(1) == 1);
}

TEST_CASE("a launch that fails names the work") {
  StreamFixture f = fixture();
  const auto stream = f.device->make_stream({.name = "compute"});
  Work work{.name = "layer 3 attention", .fn = [](LaunchContext& context) {
              fake_cuda::fail_next("cudaLaunchHostFunc", cudaErrorInvalidConfiguration);
              cudaLaunchHostFunc(static_cast<cudaStream_t>(context.native_stream), run_and_delete, nullptr);
            }};
  stream->launch(work, f.frame);
  CHECK_THROWS_WITH(stream->synchronize(), Catch::Contains("layer 3 attention on stream compute"));
}

TEST_CASE("guarded memory is accessible to commands of a stream and not to the host") {
  fake_cuda::reset();
  fake_cuda::settings().guard_memory = true;
  // The kernel refuses to read what this process may not read, which gives an error and no fault.
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const auto host_reads = [&](const std::byte* p) { return write(ends[1], p, 1) == 1; };
  {
    const auto device = make_cuda_device(0);
    const auto memory = device->allocate(100, "weights");
    CHECK(!host_reads(memory->data()));
    std::byte seen{0xff};
    device->copy_to_host(&seen, memory->data() + 99, 1);
    CHECK(seen == std::byte{0});
    const auto stream = device->make_stream({.name = "compute"});
    bool read_by_command = false;
    const Work work{"look", {}, {}, {}, [&](LaunchContext& c) {
                      fake_cuda::enqueue(static_cast<cudaStream_t>(c.native_stream),
                                         [&] { read_by_command = host_reads(memory->data()); });
                    }};
    stream->launch(work, {});
    stream->synchronize();
    CHECK(read_by_command);
    CHECK(!host_reads(memory->data()));
    // The same holds after a wait for one stream while another one has commands left.
    const auto other = device->make_stream({.name = "comm"});
    std::atomic<bool> released = false;
    const Work held{"held", {}, {}, {}, [&](LaunchContext& c) {
                      fake_cuda::enqueue_always(static_cast<cudaStream_t>(c.native_stream),
                                                [&] { released.wait(false); });
                    }};
    other->launch(held, {});
    const auto event = device->make_event(1);
    for (const bool of_event : {false, true}) {
      read_by_command = false;
      stream->launch(work, {});
      stream->record(*event);
      of_event ? event->synchronize() : stream->synchronize();
      CHECK(read_by_command);
      CHECK(!host_reads(memory->data()));
    }
    released = true;
    released.notify_all();
    other->synchronize();
  }
  close(ends[0]);
  close(ends[1]);
  fake_cuda::reset();
}

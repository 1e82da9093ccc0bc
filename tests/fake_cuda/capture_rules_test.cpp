// SPDX-License-Identifier: Apache-2.0
// The fake's rules of stream capture, as the CUDA programming guide states them.

#include <atomic>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

void CUDART_CB count(void* counter) { ++*static_cast<std::atomic<int>*>(counter); }

/// Two streams, two events, and a capture that has begun on the first stream.
struct Captured {
  explicit Captured(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    fake_cuda::reset();
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&forked, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&joined, cudaEventDisableTiming);
    REQUIRE(cudaStreamBeginCapture(a, mode) == cudaSuccess);
  }
  ~Captured() {
    cudaGraphDestroy(graph);
    for (cudaStream_t stream : {a, b}) {
      cudaStreamSynchronize(stream);
      cudaStreamDestroy(stream);
    }
    for (cudaEvent_t event : {forked, joined}) cudaEventDestroy(event);
  }
  void fork() {
    REQUIRE(cudaEventRecord(forked, a) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(b, forked, 0) == cudaSuccess);
  }
  cudaError_t end() { return cudaStreamEndCapture(a, &graph); }

  cudaStream_t a = nullptr, b = nullptr;
  cudaEvent_t forked = nullptr, joined = nullptr;
  cudaGraph_t graph = nullptr;
  std::atomic<int> counter{0};
};

}  // namespace

TEST_CASE("captured work runs only when the graph is launched") {
  Captured c;
  CHECK(cudaLaunchHostFunc(c.a, count, &c.counter) == cudaSuccess);
  c.fork();
  CHECK(cudaLaunchHostFunc(c.b, count, &c.counter) == cudaSuccess);
  CHECK(cudaEventRecord(c.joined, c.b) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(c.a, c.joined, 0) == cudaSuccess);
  REQUIRE(c.end() == cudaSuccess);
  CHECK(c.counter == 0);
  cudaGraphExec_t exec = nullptr;
  REQUIRE(cudaGraphInstantiate(&exec, c.graph, 0) == cudaSuccess);
  for (int i = 0; i < 3; ++i) CHECK(cudaGraphLaunch(exec, c.a) == cudaSuccess);
  cudaStreamSynchronize(c.a);
  CHECK(c.counter == 6);
  cudaGraphExecDestroy(exec);
}

TEST_CASE("a forked stream must be joined") {
  Captured c;
  c.fork();
  CHECK(cudaLaunchHostFunc(c.b, count, &c.counter) == cudaSuccess);
  CHECK(c.end() == cudaErrorStreamCaptureUnjoined);
}

TEST_CASE("a stream joined before its last work is not joined") {
  Captured c;
  c.fork();
  CHECK(cudaEventRecord(c.joined, c.b) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(c.a, c.joined, 0) == cudaSuccess);
  CHECK(cudaLaunchHostFunc(c.b, count, &c.counter) == cudaSuccess);
  CHECK(c.end() == cudaErrorStreamCaptureUnjoined);
}

TEST_CASE("calls that wait or allocate fail and spoil the capture") {
  Captured c;
  SECTION("synchronise a stream") { CHECK(cudaStreamSynchronize(c.a) == cudaErrorStreamCaptureUnsupported); }
  SECTION("synchronise a captured event") {
    CHECK(cudaEventRecord(c.forked, c.a) == cudaSuccess);
    CHECK(cudaEventSynchronize(c.forked) == cudaErrorCapturedEvent);
  }
  SECTION("query another event") { CHECK(cudaEventQuery(c.joined) == cudaErrorStreamCaptureUnsupported); }
  SECTION("allocate") {
    void* block = nullptr;
    CHECK(cudaMalloc(&block, 100) == cudaErrorStreamCaptureUnsupported);
  }
  SECTION("synchronise the device") { CHECK(cudaDeviceSynchronize() == cudaErrorStreamCaptureUnsupported); }
  CHECK(cudaLaunchHostFunc(c.a, count, &c.counter) == cudaErrorStreamCaptureInvalidated);
  CHECK(c.end() == cudaErrorStreamCaptureInvalidated);
  CHECK(c.graph == nullptr);
}

TEST_CASE("a captured stream may not wait for what happened before the capture") {
  Captured c;
  CHECK(cudaEventRecord(c.joined, c.b) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(c.a, c.joined, 0) == cudaErrorStreamCaptureIsolation);
  CHECK(c.end() == cudaErrorStreamCaptureInvalidated);
}

TEST_CASE("only the stream that began a capture ends it") {
  Captured c;
  c.fork();
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(c.b, &graph) == cudaErrorStreamCaptureUnmatched);
  CHECK(cudaEventRecord(c.joined, c.b) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(c.a, c.joined, 0) == cudaSuccess);
  CHECK(c.end() == cudaSuccess);
}

TEST_CASE("a host function may not call CUDA") {
  fake_cuda::reset();
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaError_t result = cudaSuccess;
  cudaLaunchHostFunc(
      stream, [](void* out) { *static_cast<cudaError_t*>(out) = cudaDeviceSynchronize(); }, &result);
  cudaStreamSynchronize(stream);
  CHECK(result == cudaErrorNotPermitted);
  cudaStreamDestroy(stream);
}

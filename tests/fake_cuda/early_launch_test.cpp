// SPDX-License-Identifier: Apache-2.0
// launch() on the fake runtime: kernels that begin early, and what keeps their order. The choice is made once in a
// process, so each case of "chosen" runs in its own.

#include <launch.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

/// What the kernels of a test share.
struct Shared {
  std::atomic<int> begun{0}, value{0};
  int seen_early = -1, seen = -1;
  bool began_in_time = true;
  std::vector<int> order;  // in which kernels end; written after waits only
};

/// Waits up to ten seconds.
bool becomes(const std::atomic<int>& number, int least) {
  for (int i = 0; i < 10'000 && number < least; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return number >= least;
}

Shared* shared_of(void* x) { return static_cast<Shared*>(x); }

/// Lets the next kernel begin, and ends only after that has begun.
void first_kernel(void* x) {
  fake_cuda::wait_for_earlier_kernels();
  fake_cuda::let_next_kernel_begin();
  Shared& shared = *shared_of(x);
  shared.began_in_time &= becomes(shared.begun, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  shared.value = 1;
  shared.order.push_back(1);
}
/// Reads before its wait, which is a mistake, and after it.
void second_kernel(void* x) {
  Shared& shared = *shared_of(x);
  shared.seen_early = shared.value;
  ++shared.begun;
  fake_cuda::wait_for_earlier_kernels();
  fake_cuda::let_next_kernel_begin();
  shared.seen = shared.value;
  shared.began_in_time &= becomes(shared.begun, 2);
  shared.order.push_back(2);
}
void third_kernel(void* x) {
  Shared& shared = *shared_of(x);
  ++shared.begun;
  fake_cuda::wait_for_earlier_kernels();
  shared.order.push_back(3);
}
/// Lets the next kernel begin, and ends later.
void slow_kernel(void* x) {
  fake_cuda::let_next_kernel_begin();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  shared_of(x)->value = 1;
}
void reading_kernel(void* x) { shared_of(x)->seen_early = shared_of(x)->value; }

struct Streams {
  Streams() {
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  }
  ~Streams() {
    for (cudaStream_t stream : {a, b}) {
      cudaStreamSynchronize(stream);
      cudaStreamDestroy(stream);
    }
    cudaEventDestroy(event);
  }
  void launch(cudaStream_t stream, void (*kernel)(void*)) {
    kernels::launch(stream, kernel, dim3(1), dim3(1), 0, static_cast<void*>(&shared));
  }
  Shared shared;
  cudaStream_t a = nullptr, b = nullptr;
  cudaEvent_t event = nullptr;
};

/// Tells whether the second of two kernels has this launch's attribute, by the edge of a graph.
bool is_early() {
  Streams s;
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  s.launch(s.a, third_kernel);
  s.launch(s.a, third_kernel);
  REQUIRE(cudaStreamEndCapture(s.a, &graph) == cudaSuccess);
  cudaGraphDestroy(graph);
  const std::vector<fake_cuda::GraphNode> nodes = fake_cuda::captured_nodes();
  REQUIRE(nodes.size() == 2);
  CHECK(nodes[1].behind == std::set<size_t>{0});
  return nodes[1].begins_early;
}

}  // namespace

TEST_CASE("kernels begin early, and after its wait each sees all that earlier ones did") {
  fake_cuda::reset();
  Streams s;
  s.launch(s.a, first_kernel);
  s.launch(s.a, second_kernel);
  s.launch(s.a, third_kernel);
  cudaStreamSynchronize(s.a);
  CHECK(s.shared.began_in_time);
  CHECK(s.shared.seen_early == 0);  // a read before the wait: the mistake shows
  CHECK(s.shared.seen == 1);
  CHECK(s.shared.order == std::vector<int>{1, 2, 3});
}

TEST_CASE("after a record or a wait for another stream a kernel begins when the whole kernel before it has ended") {
  fake_cuda::reset();
  for (bool waits : {false, true}) {
    Streams s;
    s.launch(s.a, slow_kernel);
    if (waits) {
      cudaEventRecord(s.event, s.b);
      cudaStreamWaitEvent(s.a, s.event, 0);
    } else {
      cudaEventRecord(s.event, s.a);
    }
    s.launch(s.a, reading_kernel);
    cudaStreamSynchronize(s.a);
    CHECK(s.shared.seen_early == 1);
  }
  Streams s;  // another stream sees the record, too
  s.launch(s.a, slow_kernel);
  cudaEventRecord(s.event, s.a);
  cudaStreamWaitEvent(s.b, s.event, 0);
  s.launch(s.b, reading_kernel);
  cudaStreamSynchronize(s.b);
  CHECK(s.shared.seen_early == 1);
}

TEST_CASE("a graph has early edges only between a kernel and the next one of its stream") {
  fake_cuda::reset();
  Streams s;
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  s.launch(s.a, third_kernel);  // 0
  s.launch(s.a, third_kernel);  // 1
  cudaEventRecord(s.event, s.a);
  cudaStreamWaitEvent(s.b, s.event, 0);
  s.launch(s.b, third_kernel);  // 2: the first one of its stream
  s.launch(s.a, third_kernel);  // 3: a record of another stream's wait is no command
  cudaEventRecord(s.event, s.b);
  cudaStreamWaitEvent(s.a, s.event, 0);
  s.launch(s.a, third_kernel);  // 4: after two kernels
  s.launch(s.a, third_kernel);  // 5
  cudaLaunchHostFunc(
      s.a, [](void*) {}, nullptr);  // 6
  s.launch(s.a, third_kernel);      // 7
  REQUIRE(cudaStreamEndCapture(s.a, &graph) == cudaSuccess);
  const std::vector<fake_cuda::GraphNode> nodes = fake_cuda::captured_nodes();
  std::vector<int> early;
  for (size_t i = 0; i < nodes.size(); ++i)
    if (nodes[i].begins_early) early.push_back(static_cast<int>(i));
  CHECK(early == std::vector<int>{1, 3, 5});
  cudaGraphExec_t exec = nullptr;
  REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
  cudaGraphLaunch(exec, s.a);
  cudaStreamSynchronize(s.a);
  CHECK(s.shared.begun == 7);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

TEST_CASE("chosen: SLIPSTREAM_EARLY_LAUNCH=off launches in full order", "[.off]") {
  fake_cuda::reset();
  CHECK_FALSE(is_early());
}
TEST_CASE("chosen: a GPU before compute capability 9.0 launches in full order", "[.old_gpu]") {
  fake_cuda::reset();
  fake_cuda::settings().capability = 89;
  CHECK_FALSE(is_early());
}
TEST_CASE("chosen: code without the wait, compiled for an older GPU, launches in full order", "[.old_code]") {
  fake_cuda::reset();
  fake_cuda::settings().capability = 120;
  fake_cuda::settings().kernels_compiled_for = 80;
  CHECK_FALSE(is_early());
}

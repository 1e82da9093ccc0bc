// SPDX-License-Identifier: Apache-2.0
// Issuing a step never makes the host wait, from the seventh step on it is one launch, and it never fills memory that a
// launched step still reads. A step of text generation is one launch from the fourth on. The counters are in the calls
// of the CUDA runtime, which the linker redirects here (--wrap); calls inside cuBLAS and NCCL are not counted.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "engine/base/philox.h"
#include "models/generation.h"
#include "tests/equivalence/trained.h"
#include "tests/gpu/cuda/card.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

const bool has_card = test::require_card();
std::atomic<int> waits{0}, allocations{0}, launches{0}, graph_launches{0};

}  // namespace

// Weak: tests on fake GPUs do not redirect launches, because the emulated device runs their kernels.
#define COUNT(counter, name, parameters, arguments)                      \
  extern "C" __attribute__((weak)) cudaError_t __real_##name parameters; \
  extern "C" cudaError_t __wrap_##name parameters;                       \
  extern "C" cudaError_t __wrap_##name parameters {                      \
    ++counter;                                                           \
    return __real_##name arguments;                                      \
  }
COUNT(waits, cudaStreamSynchronize, (cudaStream_t stream), (stream))
COUNT(waits, cudaEventSynchronize, (cudaEvent_t event), (event))
COUNT(waits, cudaDeviceSynchronize, (), ())
COUNT(waits, cudaMemcpy, (void* to, const void* from, size_t size, cudaMemcpyKind kind), (to, from, size, kind))
COUNT(allocations, cudaMalloc, (void** memory, size_t size), (memory, size))
COUNT(allocations, cudaHostAlloc, (void** memory, size_t size, unsigned flags), (memory, size, flags))
COUNT(allocations, cudaFree, (void* memory), (memory))
COUNT(launches, cudaLaunchKernelExC, (const cudaLaunchConfig_t* config, const void* kernel, void** arguments),
      (config, kernel, arguments))
COUNT(graph_launches, cudaGraphLaunch, (cudaGraphExec_t graph, cudaStream_t stream), (graph, stream))

namespace {

/// One rank of a tiny model on the first GPU, with all weights set and the first batch staged.
struct OneRank {
  explicit OneRank(const models::ModelOptions& model)
      : layout{.name = "one rank",
               .model = model,
               .micro_batch = 2,
               .micro_batches = 2,
               .max_norm = 0.5f,
               .check_hazards = false} {
    layout.model.dtype = DType::bf16;
    auto job = make_job(layout, 0);
    std::vector<std::unique_ptr<comm::Communicator>> none(job->channels.size());
    rank = std::make_unique<runtime::Rank>(std::move(job), make_cuda_device(0), std::move(none),
                                           equivalence::detail::rank_options(layout, 0),
                                           equivalence::detail::loader(layout, 0, staged));
    rank->initialise(3);
    rank->prime();
    rank->synchronize();
  }
  void issue_up_to(uint32_t step) {
    while (issued < step) {
      rank->issue(++issued);
      rank->wait_for_all_but(1);
    }
  }

  Layout layout;
  int64_t staged = 0;  // batches that the host has written
  uint32_t issued = 0;
  std::unique_ptr<runtime::Rank> rank;
};

/// A stream whose only work lasts until release(); a graph that is launched meanwhile begins after it.
class HeldStream {
 public:
  explicit HeldStream(Device& device) : stream_(device.make_stream({.name = "held"})) {
    work_.name = "hold";
    work_.fn = [this](LaunchContext& context) {
      context.on_host([this] {
        while (!released_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      });
    };
  }
  ~HeldStream() { released_ = true; }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;
  void hold() { stream_->launch(work_, {}); }
  void release() { released_ = true; }

 private:
  std::atomic<bool> released_{false};
  Work work_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace

TEST_CASE("issuing a step waits for nothing, takes no memory from the fifth on, and becomes one launch", "[gpu]") {
  for (const models::ModelOptions& model : {tiny_gpt2(), tiny_llama()}) {
    OneRank one(model);
    for (uint32_t step = 1; step <= 12; ++step) {
      waits = allocations = launches = graph_launches = 0;
      one.rank->issue(step);
      std::printf("  step %2u: %d waits of the host, %d allocations, %d kernels, %d graphs launched\n", step,
                  waits.load(), allocations.load(), launches.load(), graph_launches.load());
      CHECK(waits == 0);
      CHECK(allocations == (step <= kStepPeriod ? 1 : 0));  // pinned memory for the batch, one of each slot
      CHECK(graph_launches == (step <= 2 ? 0 : 1));
      // Those of a graph are launched when it is recorded. The counters can count: an eager step is many launches.
      if (step <= 6 && __real_cudaLaunchKernelExC) CHECK(launches > 20);
      if (step > 6) CHECK(launches == 0);
      one.rank->wait_for_all_but(1);
    }
    CHECK(waits > 0);  // wait_for_all_but
    one.rank->synchronize();
  }
}

TEST_CASE("a step of text generation waits for nothing, and becomes one launch", "[gpu]") {
  for (models::ModelOptions model : {tiny_gpt2(), tiny_llama()}) {
    model.context = model.tokens = 24;
    models::Generation generation(model, {.dtype = DType::bf16,
                                          .sequences = 2,
                                          .capacity = 24,
                                          .device = make_cuda_device(0),
                                          .sampling = {.temperature = 1, .top_p = 0.9, .repetition_penalty = 1.1},
                                          .read = [](const NamedTensor& tensor, int64_t begin, std::span<float> out) {
                                            const Philox random(9, tensor.name);
                                            for (float& value : out)
                                              value = 0.2f * random.normal(static_cast<uint64_t>(begin++));
                                          }});
    const std::vector<int> texts{0, 1};
    for (const int text : texts) {
      generation.begin(text, std::vector<int32_t>{5, 7, 9});
      generation.take();
    }
    constexpr int kSteps = 12;
    for (int step = 1; step <= kSteps; ++step) {
      waits = allocations = launches = graph_launches = 0;
      generation.step(texts);
      std::printf("  step %2d: %d waits of the host, %d allocations, %d kernels, %d graphs launched\n", step,
                  waits.load(), allocations.load(), launches.load(), graph_launches.load());
      // The first step takes memory and uploads its rows, the second and the third one record their turns' graphs.
      CHECK((step == 1 || (waits == 0 && allocations == 0)));
      CHECK(graph_launches == (step == 1 ? 0 : 1));
      if (step <= 3 && __real_cudaLaunchKernelExC) CHECK(launches > 20);
      if (step > 3) CHECK(launches == 0);
      if (step > 1) generation.take();  // of the step before
    }
    const std::span<const int32_t> last = generation.take();
    CHECK(std::all_of(last.begin(), last.end(), [&](int32_t id) { return id >= 0 && id < model.vocab; }));
  }
}

TEST_CASE("a step that would fill the pinned memory of a replay in flight is refused, and nothing is filled", "[gpu]") {
  OneRank waiting(tiny_gpt2());
  waiting.issue_up_to(13);
  waiting.rank->synchronize();

  OneRank ahead(tiny_gpt2());
  HeldStream held(ahead.rank->device());
  ahead.issue_up_to(8);  // all graphs are recorded, and two were launched twice
  ahead.rank->synchronize();
  held.hold();
  waits = 0;
  for (uint32_t step = 9; step <= 12; ++step) ahead.rank->issue(step);
  CHECK(waits == 0);
  const int64_t staged = ahead.staged;
  CHECK_THROWS_AS(ahead.rank->issue(13), InternalError);
  CHECK_THROWS_WITH(ahead.rank->issue(13),
                    Catch::Contains("step 13 would overwrite the pinned batch and scalars of step 9") &&
                        Catch::Contains("at most 3 ahead"));
  CHECK(ahead.staged == staged);
  held.release();
  ahead.rank->synchronize();
  ahead.rank->issue(13);
  ahead.rank->synchronize();
  for (uint32_t step = 10; step <= 13; ++step) {
    CHECK(ahead.rank->report(step).loss_sum == waiting.rank->report(step).loss_sum);
    CHECK(ahead.rank->report(step).norm == waiting.rank->report(step).norm);
  }
  CHECK_THROWS_AS(ahead.rank->report(9), InternalError);  // step 13 has replaced it
}

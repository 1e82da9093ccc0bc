// SPDX-License-Identifier: Apache-2.0
// Issuing a step never makes the host wait, and from the seventh step on it is one launch. The counters are in the
// calls of the CUDA runtime, which the linker redirects here (--wrap); calls inside cuBLAS and NCCL are not counted.

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdio>

#include "tests/equivalence/trained.h"
#include "tests/gpu/cuda/card.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

const bool has_card = test::require_card();
std::atomic<int> waits{0}, allocations{0}, launches{0}, graph_launches{0};

}  // namespace

// Weak: a fake of the runtime has no kernels of its own.
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
COUNT(launches, cudaLaunchKernel,
      (const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream),
      (kernel, grid, block, arguments, shared, stream))
COUNT(graph_launches, cudaGraphLaunch, (cudaGraphExec_t graph, cudaStream_t stream), (graph, stream))

TEST_CASE("issuing a step waits for nothing, takes no memory from the fifth on, and becomes one launch", "[gpu]") {
  for (const models::ModelOptions& model : {tiny_gpt2(), tiny_llama()}) {
    Layout layout{.name = "one rank",
                  .model = model,
                  .micro_batch = 2,
                  .micro_batches = 2,
                  .max_norm = 0.5f,
                  .check_hazards = false};
    layout.model.dtype = DType::bf16;
    auto job = make_job(layout, 0);
    std::vector<std::unique_ptr<comm::Communicator>> none(job->channels.size());
    int64_t staged = 0;
    runtime::Rank rank(std::move(job), make_cuda_device(0), std::move(none),
                       equivalence::detail::rank_options(layout, 0), equivalence::detail::loader(layout, 0, staged));
    rank.initialise(3);
    rank.prime();
    rank.synchronize();
    for (uint32_t step = 1; step <= 12; ++step) {
      waits = allocations = launches = graph_launches = 0;
      rank.issue(step);
      std::printf("  step %2u: %d waits of the host, %d allocations, %d kernels, %d graphs launched\n", step,
                  waits.load(), allocations.load(), launches.load(), graph_launches.load());
      CHECK(waits == 0);
      CHECK(allocations == (step <= kStepPeriod ? 1 : 0));  // pinned memory for the batch, one of each slot
      CHECK(graph_launches == (step <= 2 ? 0 : 1));
      // Those of a graph are launched when it is recorded. The counters can count: an eager step is many launches.
      if (step <= 6 && __real_cudaLaunchKernel) CHECK(launches > 20);
      if (step > 6) CHECK(launches == 0);
      rank.wait_behind(1);
    }
    CHECK(waits > 0);  // wait_behind
    rank.synchronize();
  }
}

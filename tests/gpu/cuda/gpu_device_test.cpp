// SPDX-License-Identifier: Apache-2.0
// The stream contract on a GPU.

#include <cuda_runtime_api.h>

#include "tests/contract/stream_contract.h"
#include "tests/gpu/cuda/card.h"

using namespace slipstream;

namespace {

const bool has_card = test::require_card();

void CUDART_CB run_and_delete(void* body) {
  const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(body));
  (*owned)();
}

/// Passes the body to the stream, as a kernel would be.
void run_on_stream(LaunchContext& context, std::function<void()> body) {
  cudaLaunchHostFunc(static_cast<cudaStream_t>(context.native_stream), run_and_delete,
                     new std::function<void()>(std::move(body)));
}

}  // namespace

TEST_CASE("the cuda device keeps the stream contract on a GPU", "[gpu]") {
  contract::check_stream_contract([] { return make_cuda_device(0); }, run_on_stream);
}

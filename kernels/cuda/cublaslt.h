// SPDX-License-Identifier: Apache-2.0
#pragma once
// The only interface to cuBLASLt.

#include "engine/device/work.h"
#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/gemm.h"

namespace slipstream::kernels {

/// Enqueues. Sizes must be at least 1. The library plans for the multiprocessors of the context's frame. Returns false
/// and enqueues nothing if this epilogue is not available at these shapes: the library has no algorithm, or, for
/// gelu_input and b_sums, the table does not show that it is faster than kernels. Without an epilogue it never returns
/// false.
/// Throws: ResourceError with the library's status.
bool gemm(const LaunchContext& context, const Gemm& args);

}  // namespace slipstream::kernels

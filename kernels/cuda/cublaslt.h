// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one door to cuBLASLt.

#include "engine/device/work.h"
#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/gemm.h"

namespace slipstream::kernels {

/// Enqueues. Sizes of at least 1. False if this epilogue is not to be had at these shapes: the library has no
/// algorithm, or, for gelu_input and b_sums, the table does not say that it is faster than a kernel. Nothing is
/// enqueued then. Without an epilogue it never is. Throws: ResourceError with the library's status.
bool gemm(const LaunchContext& context, const Gemm& args);

}  // namespace slipstream::kernels

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The one door to cuBLASLt; tests/emulation/cublaslt.cpp is its plain twin.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/device/work.h"

namespace slipstream::kernels {

/// D[m,n] (+)= op(A)[m,k] · op(B)[k,n] (+ bias down every column), column-major; `ld` are elements between columns.
/// With `pre_gelu` [m,n], ld as D: it gets that value and D = gelu of it. A, B, bias and pre_gelu are `in`, D is `out`;
/// sums are float, and float operands are multiplied as float.
struct Gemm {
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  const void* bias = nullptr;  // optional, [m]
  void* pre_gelu = nullptr;    // optional
  int64_t m = 0, n = 0, k = 0;
  int64_t a_ld = 0, b_ld = 0, d_ld = 0;
  bool a_transposed = false, b_transposed = false;
  DType in = DType::f32, out = DType::f32;
  bool accumulate = false;
};

/// Enqueues. Sizes of at least 1. False if the library has no algorithm for this epilogue at these shapes: nothing is
/// enqueued then. Without bias and pre_gelu it never is. Throws: ResourceError with the library's status.
bool gemm(const LaunchContext& context, const Gemm& args);

}  // namespace slipstream::kernels

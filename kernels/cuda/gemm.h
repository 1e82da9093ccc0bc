// SPDX-License-Identifier: Apache-2.0
#pragma once
// A matrix product with at most one epilogue, as cuBLASLt computes it.

#include <cstdint>

#include "engine/base/dtype.h"

namespace slipstream::kernels {

/// D[m,n] (+)= op(A)[m,k] · op(B)[k,n], column-major; `ld` are elements between columns. At most one epilogue:
///   bias, pre_gelu   bias down every column; with `pre_gelu` [m,n], ld as D, it gets that value and D = gelu of it
///   gelu_input       [m,n], ld as D: D = the product times gelu's derivative there
///   gelu_input, d_sums  the same, and [m]: the sums of D over n, stored and not added, of `out`
///   b_sums           [n]: the sums of op(B) over k, stored and not added, of `out`
/// `summed_after`: a kernel computes the sums of D over n afterwards.
/// A, B, bias, pre_gelu and gelu_input are `in`, D is `out`; sums are float, and float operands are multiplied as
/// float.
struct Gemm {
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  const void* bias = nullptr;        // optional, [m]
  void* pre_gelu = nullptr;          // optional
  const void* gelu_input = nullptr;  // optional
  void* d_sums = nullptr;            // optional
  void* b_sums = nullptr;            // optional
  int64_t m = 0, n = 0, k = 0;
  int64_t a_ld = 0, b_ld = 0, d_ld = 0;
  bool a_transposed = false, b_transposed = false;
  DType in = DType::f32, out = DType::f32;
  bool accumulate = false;
  bool summed_after = false;
  int32_t multiprocessors = 0;  // for which the library plans the product; 0: all of the card
};

}  // namespace slipstream::kernels

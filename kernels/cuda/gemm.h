// SPDX-License-Identifier: Apache-2.0
#pragma once
// A matrix product with at most one epilogue, as cuBLASLt computes it.

#include <cstdint>

#include "engine/base/dtype.h"

namespace slipstream::kernels {

/// D[m,n] (+)= op(A)[m,k] · op(B)[k,n], column-major; `ld` is the number of elements between columns. At most one
/// epilogue:
///   bias, pre_gelu       adds the bias down every column. `pre_gelu` [m,n], with the ld of D, receives that value, and
///                        D = gelu of it
///   gelu_input           [m,n], with the ld of D: D = the product times the derivative of gelu at gelu_input
///   gelu_input, d_sums   the same, and [m]: the sums of D over n, in the type `out`, stored and not added
///   b_sums               [n]: the sums of op(B) over k, in the type `out`, stored and not added
/// `summed_after`: a kernel computes the sums of D over n afterwards.
/// A, B, bias, pre_gelu and gelu_input have the type `in`, D has `out`. Sums are float, and float operands are
/// multiplied as float.
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
  int32_t multiprocessors = 0;  // the number for which the library plans the product; 0: all of the card
};

}  // namespace slipstream::kernels

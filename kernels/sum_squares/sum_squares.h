// SPDX-License-Identifier: Apache-2.0
#pragma once
// The sum of the squares of a range of floats, in double: a piece of the gradient norm.
//
//   *result (+)= sum over i of x[i]²
// Blocks of 4096 elements are summed on 16 interleaved lanes, then added in block order. The square of a float is exact
// in double, so the result has the same bits for any number of threads and any instruction set.

#include <cstdint>

#include "engine/device/work.h"

namespace slipstream::kernels {

struct SumSquares {
  const float* x = nullptr;
  int64_t elems = 0;
  double* result = nullptr;  // one number in device memory
  bool accumulate = false;
};

/// Enqueues on cuda, blocks on cpu. Throws: ShapeError (negative size, null operand), ResourceError (device).
void sum_squares(LaunchContext& context, const SumSquares& args);

/// 2 flops and 4 bytes an element. Pointers may be null. Pure.
Cost sum_squares_cost(const SumSquares& args);

}  // namespace slipstream::kernels

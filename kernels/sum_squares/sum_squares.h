// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums of the squares of ranges of floats, in double: parts of the gradient norm.
//
//   results[part.result] = sum over i in [0, part.elems) of x[part.begin + i]², for every part
// Blocks of 4096 elements of a part are summed on 16 interleaved lanes, and then added in block order. The square of a
// float is exact in double, so a result has the same bits for any number of threads and any instruction set.

#include <cstdint>

#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

struct SumSquaresPart {
  int64_t begin = 0, elems = 0;
  int64_t result = 0;  // index of its sum
};

struct SumSquares {
  const float* x = nullptr;
  const SumSquaresPart* parts = nullptr;  // host memory that is read before sum_squares returns
  int64_t part_count = 0;
  double* results = nullptr;  // in device memory
};

/// Enqueues on cuda, blocks on cpu. Throws: ShapeError (negative size, null operand), ResourceError (device).
void sum_squares(LaunchContext& context, const SumSquares& args);

/// Pure. 2 flops and 4 bytes per element, 8 bytes per part. `x` and `results` may be null.
Cost sum_squares_cost(const SumSquares& args);

/// Run the op on one device, for arguments that are checked and not empty. CUDA enqueues, or throws ResourceError.
SLIP_DECLARE_PER_ISA(void sum_squares_cpu(LaunchContext& context, const SumSquares& args);)
void sum_squares_cuda(LaunchContext& context, const SumSquares& args);

}  // namespace slipstream::kernels

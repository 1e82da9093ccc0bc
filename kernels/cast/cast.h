// SPDX-License-Identifier: Apache-2.0
#pragma once
// Conversion between float and bfloat16, copies, and the sum of two ranges: local works that accompany communication.
//
// bf16 is rounded to nearest, ties to even, and NaN stays NaN. Elements are independent, so any split gives the same
// bits.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

/// to[i] = from[i], f32 or bf16 on either side. The ranges may not overlap.
struct Cast {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t elems = 0;
  DType from_dtype = DType::f32;
  DType to_dtype = DType::f32;
};

/// y[i] += x[i]. The ranges may be equal; otherwise they may not overlap.
struct Add {
  const float* x = nullptr;
  float* y = nullptr;
  int64_t elems = 0;
};

/// Enqueues on cuda, blocks on cpu. Throws: ShapeError (negative size, dtype, null operand), ResourceError (device).
void cast(LaunchContext& context, const Cast& args);
void add(LaunchContext& context, const Add& args);

/// Pure. Each operand is moved once (y of add twice). Pointers may be null.
Cost cast_cost(const Cast& args);
Cost add_cost(const Add& args);

/// Run the op on one device, for arguments that are checked and not empty. CUDA enqueues, or throws ResourceError.
SLIP_DECLARE_PER_ISA(void cast_cpu(LaunchContext& context, const Cast& args);
                     void add_cpu(LaunchContext& context, const Add& args);)
void cast_cuda(LaunchContext& context, const Cast& args);
void add_cuda(LaunchContext& context, const Add& args);

}  // namespace slipstream::kernels

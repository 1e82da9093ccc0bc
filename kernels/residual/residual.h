// SPDX-License-Identifier: Apache-2.0
#pragma once
// The sum of two tensors, element by element.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

/// y = a + b.
///
/// Shapes:  a, b, y [elems]
/// Types:   a, b, y f32 or bf16; the sum is rounded once
/// Alias:   y may be a, b or both
/// Cost:    elems flops; 3·elems·sizeof(T) bytes
/// Errors:  ShapeError if elems < 0 or an operand is null
/// Source:  He et al. 2015, arXiv:1512.03385, eq. 1
struct Residual {
  const void* a = nullptr;
  const void* b = nullptr;
  void* y = nullptr;
  int64_t elems = 0;
  DType dtype = DType::f32;
};

/// Blocks on cpu, enqueues on cuda. Throws: ShapeError, ResourceError (no kernel for the device).
void residual(LaunchContext& context, const Residual& args);

/// Pure. Minimum flops and bytes. Pointers may be null.
Cost residual_cost(const Residual& args);

/// Run the op on one device, for arguments that are checked and not empty. CUDA enqueues, or throws ResourceError.
SLIP_DECLARE_PER_ISA(void residual_cpu(LaunchContext& context, const Residual& args);)
void residual_cuda(LaunchContext& context, const Residual& args);

}  // namespace slipstream::kernels

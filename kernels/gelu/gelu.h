// SPDX-License-Identifier: Apache-2.0
#pragma once
// GELU in its tanh form, element by element.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

/// y = x/2 * (1 + tanh(u)) = x / (1 + e^(-2u)), u = sqrt(2/pi) * (x + 0.044715 x^3).
///
/// Shapes:  x, y [elems]
/// Types:   x, y f32 or bf16; arithmetic f32
/// Alias:   y may be x
/// Cost:    25·elems flops (the exponential is 17 of them); 2·elems·sizeof(T) bytes
/// Errors:  ShapeError if elems < 0 or an operand is null
/// Source:  Hendrycks & Gimpel 2016, arXiv:1606.08415, section 2
struct GeluForward {
  const void* x = nullptr;
  void* y = nullptr;
  int64_t elems = 0;
  DType dtype = DType::f32;
};

/// dx = dy * (s + x * s * (1 - s) * 2 du/dx), s = 1 / (1 + e^(-2u)).
///
/// Shapes:  dy, x, dx [elems]
/// Types:   dy, x, dx f32 or bf16; arithmetic f32
/// Alias:   dx may be dy or x
/// Cost:    32·elems flops; 3·elems·sizeof(T) bytes
/// Errors:  as above
/// Source:  as above
struct GeluBackward {
  const void* dy = nullptr;
  const void* x = nullptr;
  void* dx = nullptr;
  int64_t elems = 0;
  DType dtype = DType::f32;
};

/// Blocks on cpu, enqueues on cuda. Throws: ShapeError, ResourceError (no kernel for the device).
void gelu_forward(LaunchContext& context, const GeluForward& args);
void gelu_backward(LaunchContext& context, const GeluBackward& args);

/// Pure. Minimum flops and bytes. Pointers may be null.
Cost gelu_forward_cost(const GeluForward& args);
Cost gelu_backward_cost(const GeluBackward& args);

/// Run the op on one device, for arguments that are checked and not empty. CUDA enqueues, or throws ResourceError.
SLIP_DECLARE_PER_ISA(void gelu_forward_cpu(LaunchContext& context, const GeluForward& args);
                     void gelu_backward_cpu(LaunchContext& context, const GeluBackward& args);)
void gelu_forward_cuda(LaunchContext& context, const GeluForward& args);
void gelu_backward_cuda(LaunchContext& context, const GeluBackward& args);

}  // namespace slipstream::kernels

// SPDX-License-Identifier: Apache-2.0
#pragma once
// SwiGLU without its products: the gated half of a row times the other half.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

/// y = silu(gate) * up, silu(g) = g / (1 + e^(-g)); F is width.
///
/// Shapes:  gate_up [rows, 2F], gate before up; y [rows, F]
/// Types:   gate_up, y f32 or bf16; arithmetic f32
/// Alias:   none
/// Cost:    21·rows·F flops (the exponential is 17 of them); 3·rows·F·sizeof(T) bytes
/// Errors:  ShapeError if rows < 0, F < 1 or an operand is null
/// Source:  Shazeer 2020, arXiv:2002.05202, section 2
struct SwigluForward {
  const void* gate_up = nullptr;
  void* y = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
  DType dtype = DType::f32;
};

/// With s = 1 / (1 + e^(-gate)): dgate = dy * up * s * (1 + gate * (1 - s)), dup = dy * gate * s.
///
/// Shapes:  dy [rows, F]; gate_up, dgate_up [rows, 2F]
/// Types:   all f32 or bf16; arithmetic f32
/// Alias:   dgate_up may be gate_up
/// Cost:    27·rows·F flops; 5·rows·F·sizeof(T) bytes
/// Errors:  as above
/// Source:  as above
struct SwigluBackward {
  const void* dy = nullptr;
  const void* gate_up = nullptr;
  void* dgate_up = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
  DType dtype = DType::f32;
};

/// Blocks on cpu, enqueues on cuda. Throws: ShapeError, ResourceError (no kernel for the device).
void swiglu_forward(LaunchContext& context, const SwigluForward& args);
void swiglu_backward(LaunchContext& context, const SwigluBackward& args);

/// Pure. Minimum flops and bytes. Pointers may be null.
Cost swiglu_forward_cost(const SwigluForward& args);
Cost swiglu_backward_cost(const SwigluBackward& args);

/// Run the op on one device, for arguments that are checked and not empty. CUDA enqueues, or throws ResourceError.
SLIP_DECLARE_PER_ISA(void swiglu_forward_cpu(LaunchContext& context, const SwigluForward& args);
                     void swiglu_backward_cpu(LaunchContext& context, const SwigluBackward& args);)
void swiglu_forward_cuda(LaunchContext& context, const SwigluForward& args);
void swiglu_backward_cuda(LaunchContext& context, const SwigluBackward& args);

}  // namespace slipstream::kernels

// SPDX-License-Identifier: Apache-2.0
#pragma once
// SwiGLU of the rows of experts, times the weight of each row.
//
// R = max_rows bounds the number of rows, and F is width. `count` is read on the device when the op runs: at most R
// rows count, and rows after it are neither read nor written.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

/// y = weight of the row · silu(gate) · up, silu(g) = g / (1 + e^(-g)).
///
/// Shapes:  gate_up [R, 2F], gate before up; weights [R]; y [R, F]
/// Types:   gate_up, y f32 or bf16; weights and arithmetic f32; count i32
/// Alias:   none
/// Cost:    22·R·F flops (the exponential is 17 of them); 3·R·F·sizeof(T) + 4·R bytes
/// Errors:  ShapeError if R < 0, F < 1 or an operand but count is null
/// Source:  Shazeer 2020, arXiv:2002.05202, section 2. The down-projection is linear, so that the weight may come first
struct WeightedSwigluForward {
  const void* gate_up = nullptr;
  const float* weights = nullptr;
  void* y = nullptr;
  const int32_t* count = nullptr;  // optional; null: max_rows
  int64_t max_rows = 0, width = 0;
  DType dtype = DType::f32;
};

/// With s = 1 / (1 + e^(-gate)) and w the weight of the row: dgate = w · dy · up · s · (1 + gate · (1 - s)),
/// dup = w · dy · gate · s, and dweights = sum over the row of dy · gate · s · up, in an order that depends only on F
/// and the device.
///
/// Shapes:  dy [R, F]; gate_up, dgate_up [R, 2F]; weights, dweights [R]
/// Types:   dy, gate_up, dgate_up f32 or bf16; weights, dweights and arithmetic f32; count i32
/// Alias:   dgate_up may be gate_up
/// Cost:    31·R·F flops; 5·R·F·sizeof(T) + 8·R bytes
/// Errors:  as above
/// Source:  as above
struct WeightedSwigluBackward {
  const void* dy = nullptr;
  const void* gate_up = nullptr;
  const float* weights = nullptr;
  void* dgate_up = nullptr;
  float* dweights = nullptr;
  const int32_t* count = nullptr;  // optional; null: max_rows
  int64_t max_rows = 0, width = 0;
  DType dtype = DType::f32;
};

/// Enqueues on cuda, blocks on cpu. Throws: ShapeError, ResourceError (no kernel for the device).
void weighted_swiglu_forward(LaunchContext& context, const WeightedSwigluForward& args);
void weighted_swiglu_backward(LaunchContext& context, const WeightedSwigluBackward& args);

/// Pure, by max_rows. Pointers may be null.
Cost weighted_swiglu_forward_cost(const WeightedSwigluForward& args);
Cost weighted_swiglu_backward_cost(const WeightedSwigluBackward& args);

/// Run the op on one device, for arguments that are checked and not empty. CUDA enqueues, or throws ResourceError.
SLIP_DECLARE_PER_ISA(void weighted_swiglu_forward_cpu(LaunchContext& context, const WeightedSwigluForward& args);
                     void weighted_swiglu_backward_cpu(LaunchContext& context, const WeightedSwigluBackward& args);)
void weighted_swiglu_forward_cuda(LaunchContext& context, const WeightedSwigluForward& args);
void weighted_swiglu_backward_cuda(LaunchContext& context, const WeightedSwigluBackward& args);

}  // namespace slipstream::kernels

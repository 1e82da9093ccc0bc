// SPDX-License-Identifier: Apache-2.0
#pragma once
// The products of all experts with the rows that chose them: one op for experts with different numbers of rows.
//
// Rows offsets[e] to offsets[e + 1] - 1 belong to expert e. R = max_rows bounds their number, E is the number of
// experts. The offsets are read on the device when the op runs, ascend from 0, and are at most R. Rows at and after
// offsets[E] are neither read nor written. All matrices are row-major and dense.
//
// On cpu the library of products (kernels/matmul/product.h) multiplies parts of experts, which the threads share by
// equal numbers of rows. The bits depend on the offsets, the number of threads, the instruction set and the library.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

/// y[i] = x[i] · weight[e]^T for every row i of every expert e.
///
/// Shapes:  x [R, in]; weight [E, out, in]; y [R, out]; offsets [E + 1]
/// Types:   x, weight, y f32 or bf16; sums f32; offsets i32
/// Alias:   none
/// Cost:    2·R·in·out flops; (R·(in + out) + E·in·out)·sizeof(T) + 4·(E + 1) bytes
/// Errors:  ShapeError if R < 0, E, in or out < 1, or an operand is null
/// Source:  Gale et al. 2022, arXiv:2211.15841, section 5 (products without padding to equal loads)
struct GroupedForward {
  const void* x = nullptr;
  const void* weight = nullptr;
  void* y = nullptr;
  const int32_t* offsets = nullptr;
  int64_t max_rows = 0, experts = 0, in = 0, out = 0;
  DType dtype = DType::f32;
};

/// dx[i] = dy[i] · weight[e] for every row i of every expert e.
///
/// Shapes:  dy [R, out]; weight [E, out, in]; dx [R, in]; offsets [E + 1]
/// Types, alias, cost, errors, source: as above
struct GroupedBackwardInput {
  const void* dy = nullptr;
  const void* weight = nullptr;
  void* dx = nullptr;
  const int32_t* offsets = nullptr;
  int64_t max_rows = 0, experts = 0, in = 0, out = 0;
  DType dtype = DType::f32;
};

/// dweight[e] (+)= sum over the rows i of expert e of dy[i]^T · x[i]. Without rows: zero, or nothing is added.
///
/// Shapes:  x [R, in]; dy [R, out]; dweight [E, out, in]; offsets [E + 1]
/// Types:   x, dy f32 or bf16; sums, dweight f32; offsets i32
/// Alias:   none
/// Cost:    2·R·in·out flops; R·(in + out)·sizeof(T) + 4·E·in·out + 4·(E + 1) bytes, and 4·E·in·out more with
///          `accumulate`
/// Errors:  as above; x and dy may be null if R = 0
/// Source:  as above
struct GroupedBackwardWeight {
  const void* x = nullptr;
  const void* dy = nullptr;
  float* dweight = nullptr;
  const int32_t* offsets = nullptr;
  int64_t max_rows = 0, experts = 0, in = 0, out = 0;
  DType dtype = DType::f32;
  bool accumulate = false;
};

/// Enqueues on cuda, blocks on cpu. Throws: ShapeError, ResourceError (no kernel for the device).
void grouped_forward(LaunchContext& context, const GroupedForward& args);
void grouped_backward_input(LaunchContext& context, const GroupedBackwardInput& args);
void grouped_backward_weight(LaunchContext& context, const GroupedBackwardWeight& args);

/// Pure, by max_rows. Pointers may be null.
Cost grouped_forward_cost(const GroupedForward& args);
Cost grouped_backward_input_cost(const GroupedBackwardInput& args);
Cost grouped_backward_weight_cost(const GroupedBackwardWeight& args);

/// Run the op on one device, for arguments that are checked. CUDA enqueues, or throws ResourceError.
SLIP_DECLARE_PER_ISA(void grouped_forward_cpu(LaunchContext& context, const GroupedForward& args);
                     void grouped_backward_input_cpu(LaunchContext& context, const GroupedBackwardInput& args);
                     void grouped_backward_weight_cpu(LaunchContext& context, const GroupedBackwardWeight& args);)
void grouped_forward_cuda(LaunchContext& context, const GroupedForward& args);
void grouped_backward_input_cuda(LaunchContext& context, const GroupedBackwardInput& args);
void grouped_backward_weight_cuda(LaunchContext& context, const GroupedBackwardWeight& args);

}  // namespace slipstream::kernels

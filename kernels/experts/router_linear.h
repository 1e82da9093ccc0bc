// SPDX-License-Identifier: Apache-2.0
#pragma once
// The product that gives a router its logits, and its gradients, with sums and logits in float32.
//
// T is the number of tokens, D the width of the model and E the number of experts. All matrices are row-major and
// dense.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

/// logits = x · weight^T.
///
/// Shapes:  x [T, D]; weight [E, D]; logits [T, E]
/// Types:   x, weight f32 or bf16; logits f32. Products and sums are f32: bf16 operands are widened
/// Alias:   none
/// Cost:    2·T·D·E flops; (T·D + E·D)·sizeof(T) + 4·T·E bytes
/// Errors:  ShapeError if T < 0, D < 1, E < 1 or an operand is null
/// Source:  Shazeer et al. 2017, arXiv:1701.06538, eq. 4, without noise
struct RouterLinear {
  const void* x = nullptr;
  const void* weight = nullptr;
  float* logits = nullptr;
  int64_t tokens = 0, width = 0, experts = 0;
  DType dtype = DType::f32;
};

/// dx (+)= dlogits · weight. The sum, together with the old dx, is rounded once.
///
/// Shapes:  dlogits [T, E]; weight [E, D]; dx [T, D]
/// Types:   dlogits f32; weight, dx f32 or bf16. Products and sums are f32: dlogits are never rounded to bf16
/// Alias:   none
/// Cost:    2·T·D·E flops; 4·T·E + (E·D + T·D)·sizeof(T) bytes, and T·D·sizeof(T) more with `accumulate`
/// Errors:  as above
/// Source:  the gradient of the formula above
struct RouterLinearBackwardInput {
  const float* dlogits = nullptr;
  const void* weight = nullptr;
  void* dx = nullptr;
  int64_t tokens = 0, width = 0, experts = 0;
  DType dtype = DType::f32;
  bool accumulate = false;
};

/// dweight (+)= dlogits^T · x.
///
/// Shapes:  dlogits [T, E]; x [T, D]; dweight [E, D]
/// Types:   dlogits, dweight f32; x f32 or bf16. Products and sums are f32
/// Alias:   none
/// Cost:    2·T·D·E flops; 4·T·E + T·D·sizeof(T) + 4·E·D bytes, and 4·E·D more with `accumulate`
/// Errors:  as above; x and dlogits may be null if T = 0
/// Source:  the gradient of the formula above
struct RouterLinearBackwardWeight {
  const float* dlogits = nullptr;
  const void* x = nullptr;
  float* dweight = nullptr;
  int64_t tokens = 0, width = 0, experts = 0;
  DType dtype = DType::f32;
  bool accumulate = false;
};

/// Enqueues on cuda, blocks on cpu. Throws: ShapeError, ResourceError (no kernel for the device). On cpu the bits
/// depend on the number of threads, the instruction set and the library of products, as those of matmul do.
void router_linear(LaunchContext& context, const RouterLinear& args);
void router_linear_backward_input(LaunchContext& context, const RouterLinearBackwardInput& args);
void router_linear_backward_weight(LaunchContext& context, const RouterLinearBackwardWeight& args);

/// Pure. Pointers may be null.
Cost router_linear_cost(const RouterLinear& args);
Cost router_linear_backward_input_cost(const RouterLinearBackwardInput& args);
Cost router_linear_backward_weight_cost(const RouterLinearBackwardWeight& args);

/// Run the op on one device, for arguments that are checked. CUDA enqueues, or throws ResourceError.
SLIP_DECLARE_PER_ISA(void router_linear_cpu(LaunchContext& context, const RouterLinear& args);
                     void router_linear_backward_input_cpu(LaunchContext& context,
                                                           const RouterLinearBackwardInput& args);
                     void router_linear_backward_weight_cpu(LaunchContext& context,
                                                            const RouterLinearBackwardWeight& args);)
void router_linear_cuda(LaunchContext& context, const RouterLinear& args);
void router_linear_backward_input_cuda(LaunchContext& context, const RouterLinearBackwardInput& args);
void router_linear_backward_weight_cuda(LaunchContext& context, const RouterLinearBackwardWeight& args);

}  // namespace slipstream::kernels

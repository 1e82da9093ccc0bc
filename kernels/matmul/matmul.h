// SPDX-License-Identifier: Apache-2.0
#pragma once
// Matrix products of a linear layer: forward with bias and GELU, the gradient of the input, and the gradients of weight
// and bias.
//
// All matrices are row-major, and dense unless a stride is named. Activations and weights are f32 or bf16 (`dtype`,
// accumulated in float), gradients of parameters are float. An output may not overlap another operand, but two inputs
// may be the same memory. Rows, in and out may be 0.
// On cpu, oneDNN (or Eigen) computes the product, with one call per thread on a tile of the result. The bits depend on
// the number of threads, the instruction set and the library, which are all part of the plan, and on nothing else.
// `padding`: the last columns of `out` exist only for the strides. Their rows of weight and, in a backward pass, their
// columns of dy are zero. cpu skips them, so that padding changes neither bits nor time: it sets these columns of y to
// zero, and these rows of dweight unless it adds. cuda multiplies them like the others.
// GELU is the tanh form of Hendrycks & Gimpel 2016, "Gaussian Error Linear Units", section 2:
//   gelu(v) = v/2 (1 + tanh(sqrt(2/pi) (v + 0.044715 v^3))).

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/device/work.h"

namespace slipstream::kernels {

/// y[rows,out] = x[rows,in] · weight[out,in]^T + bias[out].
/// With `pre_activation` [rows,out]: pre_activation receives that value, and y = gelu(value). `bias`, `y` and
/// `pre_activation` have the type `dtype`.
struct MatmulForward {
  const void* x = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;  // optional
  void* y = nullptr;
  void* pre_activation = nullptr;  // optional
  int64_t rows = 0, in = 0, out = 0;
  DType dtype = DType::f32;
  int64_t padding = 0;
};

/// dx[rows,in] (+)= dy[rows,out] · weight[out,in].
/// With `pre_activation` [rows,in], `dtype`: dx = that product times gelu'(pre_activation), and nothing is added. With
/// `dbias` [in]: dbias (+)= sum over rows of dx, the gradient of the bias that was added to the tensor of dx. cpu adds
/// dx as it is stored, in row order; cuda adds in another fixed order. Sums that cuBLASLt forms are rounded to `dtype`.
struct MatmulBackwardInput {
  const void* dy = nullptr;
  const void* weight = nullptr;
  void* dx = nullptr;
  int64_t rows = 0, in = 0, out = 0;
  DType dtype = DType::f32;
  bool accumulate = false;
  const void* pre_activation = nullptr;  // optional
  int64_t padding = 0;
  float* dbias = nullptr;  // optional
  bool accumulate_bias = false;
};

/// dweight[out,in] (+)= dy^T · x[rows,in]; dbias[out] (+)= sum over rows of dy, in row order.
/// `dy_stride`: the elements between rows of dy; 0 means `out`. It is larger for a chunk of the columns of a wider
/// matrix.
struct MatmulBackwardWeight {
  const void* x = nullptr;
  const void* dy = nullptr;
  float* dweight = nullptr;
  float* dbias = nullptr;  // optional
  int64_t rows = 0, in = 0, out = 0;
  DType dtype = DType::f32;
  bool accumulate = false;
  int64_t dy_stride = 0;
  int64_t padding = 0;
};

/// Enqueues on cuda, blocks on cpu. Throws: ShapeError (negative size, dtype, null operand, stride below out,
/// padding above out, a gradient of GELU added), ResourceError (no kernel for this device).
void matmul_forward(LaunchContext& context, const MatmulForward& args);
void matmul_backward_input(LaunchContext& context, const MatmulBackwardInput& args);
void matmul_backward_weight(LaunchContext& context, const MatmulBackwardWeight& args);

/// Pure. 2 rows in (out - padding) flops, plus the epilogue. Every operand is moved once, without padding. Pointers may
/// be null.
Cost matmul_forward_cost(const MatmulForward& args);
Cost matmul_backward_input_cost(const MatmulBackwardInput& args);
Cost matmul_backward_weight_cost(const MatmulBackwardWeight& args);

/// Run the op on one device, for arguments that are checked and not empty. CUDA enqueues, or throws ResourceError.
void matmul_forward_cuda(LaunchContext& context, const MatmulForward& args);
void matmul_backward_input_cuda(LaunchContext& context, const MatmulBackwardInput& args);
/// The part of matmul_backward_input_cuda after a plain product in dx: dx *= gelu'(pre_activation), and dbias.
void gelu_gradient_cuda(LaunchContext& context, const MatmulBackwardInput& args);
/// `dy_stride` is resolved (never 0).
void matmul_backward_weight_cuda(LaunchContext& context, const MatmulBackwardWeight& args);

}  // namespace slipstream::kernels

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Layer norm of rows, with the residual sum before it and the residual gradient after it fused in.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

/// s = x + delta (x if delta is null); y = (s - mean(s)) / sqrt(var(s) + eps) * weight + bias, row by row. D is width.
///
/// Shapes:  x, delta, sum, y [rows, D]; weight, bias [D]; mean, inv_std [rows]
/// Types:   x, delta, sum, y, weight, bias f32 or bf16; mean, inv_std and all sums f32; var is the mean square of
///          s - mean, in a second pass. s is rounded to its type before it is normalised
/// Alias:   sum may be x or delta; y may be x or delta if delta is null or sum is another buffer
/// Cost:    9·rows·D flops (10 with delta); ((2 or 4)·rows·D + 2·D)·sizeof(T) + 8·rows bytes
/// Errors:  ShapeError if D < 1, delta comes without sum, or an operand is null
/// Source:  Ba, Kiros & Hinton 2016, arXiv:1607.06450, eq. 4
struct LayerNormForward {
  const void* x = nullptr;
  const void* delta = nullptr;
  void* sum = nullptr;  // written if delta is set
  const void* weight = nullptr;
  const void* bias = nullptr;
  void* y = nullptr;
  float* mean = nullptr;
  float* inv_std = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
  float eps = 1e-5f;
  DType dtype = DType::f32;
};

/// With n = (x - mean) * inv_std and g = dy * weight: dx = residual + inv_std * (g - mean(g) - n * mean(g * n)),
/// dweight = sum over rows of dy * n, dbias = sum over rows of dy. x is the sum that the forward pass normalised.
/// dx_sums = sum over rows of dx, the gradient of a bias whose sum with a product was x or delta.
///
/// Shapes:  as above; workspace layer_norm_backward_workspace_elems(rows, width) floats (for the sums of the CPU)
/// Types:   dy, x, weight, residual, dx f32 or bf16; dweight, dbias, dx_sums f32; accumulate adds to these three. cpu
///          sums dx as it is stored, in row order; cuda sums it before it is rounded
/// Alias:   dx may be dy, x or residual
/// Cost:    17·rows·D flops (18 with residual); ((3 or 4)·rows·D + D)·sizeof(T) + (2 or 4)·4·D + 8·rows bytes;
///          rows·D flops and (1 or 2)·4·D bytes more with dx_sums
/// Errors:  ShapeError if D < 1 or an operand is null
/// Source:  as above. Rows are summed in blocks that depend only on their number, and blocks in order: the bits do not
///          depend on threads.
struct LayerNormBackward {
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* weight = nullptr;
  const float* mean = nullptr;
  const float* inv_std = nullptr;
  const void* residual = nullptr;
  void* dx = nullptr;
  float* dweight = nullptr;
  float* dbias = nullptr;
  float* workspace = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
  DType dtype = DType::f32;
  bool accumulate = false;
  float* dx_sums = nullptr;  // optional
};

/// Blocks on cpu, enqueues on cuda. Throws: ShapeError, ResourceError (no kernel for the device).
void layer_norm_forward(LaunchContext& context, const LayerNormForward& args);
void layer_norm_backward(LaunchContext& context, const LayerNormBackward& args);

/// Pure. The minimum of flops and bytes. Depends on no pointer but on whether delta, residual and dx_sums are present.
Cost layer_norm_forward_cost(const LayerNormForward& args);
Cost layer_norm_backward_cost(const LayerNormBackward& args);

/// Pure. Floats of workspace of layer_norm_backward.
int64_t layer_norm_backward_workspace_elems(int64_t rows, int64_t width);

/// Run the op on one device, for arguments that are checked and not empty. CUDA enqueues, or throws ResourceError.
SLIP_DECLARE_PER_ISA(void layer_norm_forward_cpu(LaunchContext& context, const LayerNormForward& args);
                     void layer_norm_backward_cpu(LaunchContext& context, const LayerNormBackward& args);)
void layer_norm_forward_cuda(LaunchContext& context, const LayerNormForward& args);
void layer_norm_backward_cuda(LaunchContext& context, const LayerNormBackward& args);

}  // namespace slipstream::kernels

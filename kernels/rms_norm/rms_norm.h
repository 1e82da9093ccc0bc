// SPDX-License-Identifier: Apache-2.0
#pragma once
// RMS norm of rows, with the residual sum before it and the residual gradient after it fused in.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

/// s = x + delta (x if delta is null); y = s / sqrt(mean(s^2) + eps) * weight, row by row. D is width.
///
/// Shapes:  x, delta, sum, y [rows, D]; weight [D]; inv_rms [rows]
/// Types:   x, delta, sum, y, weight f32 or bf16; inv_rms and the sum of squares f32. s is rounded to its type before
///          it is normalised, and s * inv_rms before it is multiplied by the weight, as Llama does
/// Alias:   sum may be x or delta; y may be x or delta if delta is null or sum is another buffer
/// Cost:    4·rows·D flops (5 with delta); ((2 or 4)·rows·D + D)·sizeof(T) + 4·rows bytes
/// Errors:  ShapeError if D < 1, delta comes without sum, or an operand is null
/// Source:  Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4
struct RmsNormForward {
  const void* x = nullptr;
  const void* delta = nullptr;
  void* sum = nullptr;  // written if delta is set
  const void* weight = nullptr;
  void* y = nullptr;
  float* inv_rms = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
  float eps = 1e-5f;
  DType dtype = DType::f32;
};

/// With n = x * inv_rms and g = dy * weight: dx = residual + inv_rms * (g - n * mean(g * n)), dweight = sum over rows
/// of dy * n. x is the sum that the forward pass normalised.
///
/// Shapes:  as above; workspace rms_norm_backward_workspace_elems(rows, width) floats (for the sums of the CPU)
/// Types:   dy, x, weight, residual, dx f32 or bf16; dweight f32; accumulate adds to dweight
/// Alias:   dx may be dy, x or residual
/// Cost:    11·rows·D flops (12 with residual); ((3 or 4)·rows·D + D)·sizeof(T) + (1 or 2)·4·D + 4·rows bytes
/// Errors:  ShapeError if D < 1 or an operand is null
/// Source:  as above. Rows are summed in blocks that depend only on their number, and blocks in order: the bits do not
///          depend on threads.
struct RmsNormBackward {
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* weight = nullptr;
  const float* inv_rms = nullptr;
  const void* residual = nullptr;
  void* dx = nullptr;
  float* dweight = nullptr;
  float* workspace = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
  DType dtype = DType::f32;
  bool accumulate = false;
};

/// Blocks on cpu, enqueues on cuda. Throws: ShapeError, ResourceError (no kernel for the device).
void rms_norm_forward(LaunchContext& context, const RmsNormForward& args);
void rms_norm_backward(LaunchContext& context, const RmsNormBackward& args);

/// Pure. The minimum of flops and bytes. Depends on no pointer but on whether delta and residual are present.
Cost rms_norm_forward_cost(const RmsNormForward& args);
Cost rms_norm_backward_cost(const RmsNormBackward& args);

/// Pure. Floats of workspace of rms_norm_backward.
int64_t rms_norm_backward_workspace_elems(int64_t rows, int64_t width);

/// Run the op on one device, for arguments that are checked and not empty. CUDA enqueues, or throws ResourceError.
SLIP_DECLARE_PER_ISA(void rms_norm_forward_cpu(LaunchContext& context, const RmsNormForward& args);
                     void rms_norm_backward_cpu(LaunchContext& context, const RmsNormBackward& args);)
void rms_norm_forward_cuda(LaunchContext& context, const RmsNormForward& args);
void rms_norm_backward_cuda(LaunchContext& context, const RmsNormBackward& args);

}  // namespace slipstream::kernels

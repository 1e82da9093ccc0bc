// SPDX-License-Identifier: Apache-2.0
#pragma once
// RMS norm of every query and key head in packed rows of queries, keys and values.
//
// Letters: R rows, H heads, G key-value heads, E head_dim.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

/// For every head h < H + G of a row: y = x / sqrt(mean(x^2) + eps) * weight, with q_weight for the first H heads and
/// k_weight for the others. The G heads of values, which follow them, are copied.
///
/// Shapes:  x, y [R, (H + 2 G)·E]; q_weight, k_weight [E]; inv_rms [R, H + G]
/// Types:   x, y, weights f32 or bf16; inv_rms and the sum of squares f32. x * inv_rms is rounded before it is
///          multiplied by the weight, as in rms_norm
/// Alias:   none
/// Cost:    4·R·(H + G)·E flops; (2·R·(H + 2 G)·E + 2·E)·sizeof(T) + 4·R·(H + G) bytes
/// Errors:  ShapeError if H, G or E is below 1, E is above 256, or an operand is null
/// Source:  Yang et al. 2025, arXiv:2505.09388 (norms of queries and keys); Zhang & Sennrich 2019, arXiv:1910.07467
struct HeadNormForward {
  const void* x = nullptr;
  const void* q_weight = nullptr;
  const void* k_weight = nullptr;
  void* y = nullptr;
  float* inv_rms = nullptr;
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  float eps = 1e-5f;
  DType dtype = DType::f32;
};

/// With n = x * inv_rms and g = d * weight of a head: d <- inv_rms * (g - n * mean(g * n)) in place, and dweight = sum
/// over rows and heads of d * n. The gradients of values stay.
///
/// Shapes:  d and x as y and x above; dq_weight, dk_weight [E]; workspace head_norm_backward_workspace_elems() floats
/// Types:   d, x, weights f32 or bf16; gradients of weights f32; accumulate adds to them
/// Alias:   none
/// Cost:    11·R·(H + G)·E flops; (3·R·(H + G)·E + 2·E)·sizeof(T) + (1 or 2)·8·E + 4·R·(H + G) bytes
/// Errors:  as above
/// Source:  as above. Rows are summed in blocks that depend only on their number, and blocks in order: the bits do not
///          depend on threads.
struct HeadNormBackward {
  void* d = nullptr;
  const void* x = nullptr;
  const void* q_weight = nullptr;
  const void* k_weight = nullptr;
  const float* inv_rms = nullptr;
  float* dq_weight = nullptr;
  float* dk_weight = nullptr;
  float* workspace = nullptr;
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::f32;
  bool accumulate = false;
};

/// Blocks on cpu, enqueues on cuda. Throws: ShapeError, ResourceError (no kernel for the device).
void head_norm_forward(LaunchContext& context, const HeadNormForward& args);
void head_norm_backward(LaunchContext& context, const HeadNormBackward& args);

/// Pure. Minimum flops and bytes. Pointers may be null.
Cost head_norm_forward_cost(const HeadNormForward& args);
Cost head_norm_backward_cost(const HeadNormBackward& args);

/// Pure. Floats of workspace of head_norm_backward.
int64_t head_norm_backward_workspace_elems(int64_t rows, int64_t head_dim);

/// Run the op on one device, for arguments that are checked and not empty. CUDA enqueues, or throws ResourceError.
SLIP_DECLARE_PER_ISA(void head_norm_forward_cpu(LaunchContext& context, const HeadNormForward& args);
                     void head_norm_backward_cpu(LaunchContext& context, const HeadNormBackward& args);)
void head_norm_forward_cuda(LaunchContext& context, const HeadNormForward& args);
void head_norm_backward_cuda(LaunchContext& context, const HeadNormBackward& args);

}  // namespace slipstream::kernels

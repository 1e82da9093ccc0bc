// SPDX-License-Identifier: Apache-2.0
#pragma once
// The two ops of text generation that read much and compute little: products of few rows with a weight, and attention
// of one new token to all earlier ones. And their bound: a pass that only reads. On cpu only; a GPU generates with the
// ops of training.
//
// Letters: R rows, H heads, G key-value heads (G divides H), E head_dim, N keys.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

/// Most rows for which few_rows_product reads each weight once.
constexpr int64_t kFewRows = 8;

/// y[R,out] = x[R,in] · weight[out,in]^T + bias[out].
///
/// Types:   weight f32 or bf16 (`dtype`); x, bias, y and sums f32
/// Alias:   none
/// Cost:    2·R·in·out flops; out·in·sizeof(T) + 4·R·(in + out) bytes
/// Errors:  ShapeError if R is above kFewRows or an operand but the bias is null
/// Source:  none. Every element of y is one sum in a fixed order: bits do not depend on threads or on the other rows.
struct FewRowsProduct {
  const float* x = nullptr;
  const void* weight = nullptr;
  const float* bias = nullptr;  // optional
  float* y = nullptr;
  int64_t rows = 0, in = 0, out = 0;
  DType dtype = DType::f32;
};

/// out[h] = sum over s < N of softmax_s(scale * q[h].k[s]) v[s] with k and v of key-value head h / (H/G).
///
/// Shapes:  q, out [H, E]; row s of k (of v) at + s * kv_stride elements, its heads side by side; scores [H, N]
/// Types:   all f32
/// Alias:   none
/// Cost:    4·H·E·N flops; 8·N·G·E + 8·H·E bytes
/// Errors:  ShapeError if N, H, G or E is below 1, G does not divide H, or an operand is null
/// Source:  as kernels/attention
struct OneTokenAttention {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  float* out = nullptr;
  float* scores = nullptr;  // workspace
  int64_t keys = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t kv_stride = 0;  // elements
  float scale = 1.0f;
};

/// sum = of all floats at `at`, in any order: the fastest that a CPU can read memory.
struct ReadAll {
  const float* at = nullptr;
  int64_t elems = 0;
  double* sum = nullptr;
};

/// Blocks. Throws: ShapeError, ResourceError (another device than cpu).
void few_rows_product(LaunchContext& context, const FewRowsProduct& args);
void one_token_attention(LaunchContext& context, const OneTokenAttention& args);
void read_all(LaunchContext& context, const ReadAll& args);

/// Pure. Minimum flops and bytes. Pointers may be null.
Cost few_rows_product_cost(const FewRowsProduct& args);
Cost one_token_attention_cost(const OneTokenAttention& args);

SLIP_DECLARE_PER_ISA(void few_rows_product_cpu(LaunchContext& context, const FewRowsProduct& args);
                     void one_token_attention_cpu(LaunchContext& context, const OneTokenAttention& args);
                     void read_all_cpu(LaunchContext& context, const ReadAll& args);)

}  // namespace slipstream::kernels

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ops of text generation that read much and compute little: products of few rows with a weight, and attention of
// one new token to all earlier ones. read_all is their bound: a pass that only reads, on cpu only.
//
// Letters: R rows, H heads, G key-value heads (G divides H), E head_dim, N keys.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

/// The most rows for which few_rows_product reads each weight once.
constexpr int64_t kFewRows = 8;

/// y[R,out] = x[R,in] · weight[out,in]^T + bias[out].
///
/// Types:   weight f32 or bf16 (`dtype`); x, bias, y and sums f32
/// Alias:   none
/// Cost:    2·R·in·out flops; out·in·sizeof(T) + 4·R·(in + out) bytes
/// Errors:  ShapeError if R is above kFewRows or an operand but the bias is null
/// Source:  none. Every element of y is one sum in a fixed order, so the bits depend neither on threads nor on the
///          other rows.
struct FewRowsProduct {
  const float* x = nullptr;
  const void* weight = nullptr;
  const float* bias = nullptr;  // optional
  float* y = nullptr;
  int64_t rows = 0, in = 0, out = 0;
  DType dtype = DType::f32;
};

/// The tokens of a block of keys, as many as the widest vector has lanes.
constexpr int64_t kKeyBlock = 16;

/// Memory for the keys and values of several sequences, in the order in which attention reads them, so that it reads
/// only forward and adds whole vectors. For each sequence and key-value head it has the keys in blocks [E, kKeyBlock],
/// and then the values [capacity, E]. A warp of a GPU reads whole lines of it, too.
struct KeyCache {
  void* at = nullptr;
  int64_t capacity = 0;  // the tokens of a sequence, a multiple of kKeyBlock
  DType dtype = DType::f32;
};
constexpr int64_t key_cache_capacity(int64_t tokens) { return (tokens + kKeyBlock - 1) / kKeyBlock * kKeyBlock; }
/// The elements of a sequence.
constexpr int64_t key_cache_elems(int64_t capacity, int64_t kv_heads, int64_t head_dim) {
  return 2 * capacity * kv_heads * head_dim;
}

/// Stores the keys and values of tokens [first, first + rows) of a sequence.
///
/// Shapes:  row r of k (of v) is at + r * row_stride elements, with its heads side by side
/// Types:   k, v f32; the cache f32 or bf16, rounded to nearest, ties to even
/// Errors:  ShapeError if the tokens exceed the capacity, the capacity is no multiple of kKeyBlock, G or E is below 1,
///          or an operand is null
struct KeepKeys {
  const float* k = nullptr;
  const float* v = nullptr;
  KeyCache to;
  int64_t sequence = 0;
  int64_t rows = 0, first = 0, row_stride = 0;
  int64_t kv_heads = 0, head_dim = 0;
};

/// The first token that `token` sees through a window; 0: it sees all.
constexpr int64_t first_visible(int64_t token, int64_t window) {
  return window > 0 && token >= window ? token + 1 - window : 0;
}

/// The widest head on cuda, as in kernels/attention.
constexpr int64_t kDecodeHeadDimMax = 256;

/// For each row, stores the row's k and v as those of token tokens[r] of its sequence. Then out[h] = sum over the
/// sequence's tokens s up to this one of softmax_s(scale * q[h].k[s]) v[s], with k and v of key-value head h / (H/G).
///
/// Shapes:  qkv [R, H E + 2 G E]: q, k, v side by side; out [R, H E]; sequences, tokens [R]; scores:
///          attention_scores() elements
/// Types:   the cache f32 or bf16, as in KeepKeys; sums and all else f32
/// Alias:   the rows are of different sequences
/// Cost:    4·H·E·N flops; 2·N·G·E·sizeof(T) + 8·H·E bytes, each summed over the rows
/// Errors:  ShapeError if G does not divide H, a size is below 1, an operand is null, or, on cuda, E is above
///          kDecodeHeadDimMax or the cache is not aligned to 16 bytes. On cpu also if a token exceeds the capacity; on
///          cuda the host does not know the tokens, and the caller bounds them.
/// Source:  as kernels/attention. The bits of a row depend neither on threads nor on the other rows.
struct OneTokenAttention {
  const float* qkv = nullptr;
  float* out = nullptr;
  float* scores = nullptr;  // workspace
  KeyCache cache;
  const int32_t* sequences = nullptr;
  const int32_t* tokens = nullptr;  // in device memory, so that a recorded launch serves every token
  int64_t rows = 0;
  int64_t window = 0;  // tokens that are visible, with the new one; 0: all
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  float scale = 1.0f;
};
/// Pure. The elements of the workspace on a device of this kind: on cpu for these tokens, on cuda for any tokens.
int64_t attention_scores(const OneTokenAttention& args, DeviceKind kind = DeviceKind::cpu);

/// sum = the sum of all floats at `at`, in any order. This is as fast as a CPU can read memory.
struct ReadAll {
  const float* at = nullptr;
  int64_t elems = 0;
  double* sum = nullptr;
};

/// Enqueue on cuda, block on cpu. Throws: ShapeError, ResourceError (no kernel for this device).
void few_rows_product(LaunchContext& context, const FewRowsProduct& args);
void keep_keys(LaunchContext& context, const KeepKeys& args);
void one_token_attention(LaunchContext& context, const OneTokenAttention& args);
/// Blocks. Throws: ShapeError, ResourceError (another device than cpu).
void read_all(LaunchContext& context, const ReadAll& args);

/// Pure. The minimum of flops and bytes. Pointers may be null. `keys`: the visible tokens of all rows together.
Cost few_rows_product_cost(const FewRowsProduct& args);
Cost one_token_attention_cost(const OneTokenAttention& args, int64_t keys);

SLIP_DECLARE_PER_ISA(void few_rows_product_cpu(LaunchContext& context, const FewRowsProduct& args);
                     void keep_keys_cpu(LaunchContext& context, const KeepKeys& args);
                     void one_token_attention_cpu(LaunchContext& context, const OneTokenAttention& args);
                     void read_all_cpu(LaunchContext& context, const ReadAll& args);)

}  // namespace slipstream::kernels

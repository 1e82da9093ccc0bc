// SPDX-License-Identifier: Apache-2.0
// Checks, costs and dispatch of the ops of text generation.

#include "kernels/decode/decode.h"

#include <algorithm>

#include "engine/base/check.h"
#include "kernels/common/checks.h"
#include "kernels/decode/decode_cuda.h"

namespace slipstream::kernels {
namespace {

/// Requires that there is room for the tokens of `cache` up to `end`.
void require_room(std::string_view op, const KeyCache& cache, int64_t end) {
  require_activation_dtype(op, cache.dtype);
  require_pointers(op, {cache.at});
  if (cache.capacity % kKeyBlock != 0)
    throw ShapeError("[{}] capacity is {}, need a multiple of {}.", op, cache.capacity, kKeyBlock);
  if (end > cache.capacity) throw ShapeError("[{}] {} tokens exceed the capacity of {}.", op, end, cache.capacity);
}

/// Kernels keep a head of a query in shared memory and read keys in pieces of 16 bytes.
void require_cuda_shape(std::string_view op, const OneTokenAttention& args) {
  if (args.head_dim > kDecodeHeadDimMax)
    throw ShapeError("[{}] head_dim is {}, need at most {} on cuda.", op, args.head_dim, kDecodeHeadDimMax);
  if (reinterpret_cast<uintptr_t>(args.cache.at) % 16 != 0)
    throw ShapeError("[{}] the cache is not aligned to 16 bytes, as cuda needs.", op);
}

}  // namespace

void few_rows_product(LaunchContext& context, const FewRowsProduct& args) {
  constexpr std::string_view op = "few_rows_product";
  require_activation_dtype(op, args.dtype);
  require_at_least(op, "rows", args.rows, 0);
  require_at_least(op, "in", args.in, 1);
  require_at_least(op, "out", args.out, 0);
  if (args.rows > kFewRows) throw ShapeError("[{}] rows is {}, need at most {}.", op, args.rows, kFewRows);
  if (args.rows * args.out == 0) return;
  require_pointers(op, {args.x, args.weight, args.y});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return few_rows_product_cuda(context, args);
  SLIP_CALL_ISA(few_rows_product_cpu(context, args));
}

void keep_keys(LaunchContext& context, const KeepKeys& args) {
  constexpr std::string_view op = "keep_keys";
  require_at_least(op, "rows", args.rows, 0);
  require_at_least(op, "sequence", args.sequence, 0);
  require_at_least(op, "first", args.first, 0);
  require_at_least(op, "kv_heads", args.kv_heads, 1);
  require_at_least(op, "head_dim", args.head_dim, 1);
  require_at_least(op, "row_stride", args.row_stride, args.kv_heads * args.head_dim);
  if (args.rows == 0) return;
  require_pointers(op, {args.k, args.v});
  require_room(op, args.to, args.first + args.rows);
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return keep_keys_cuda(context, args);
  SLIP_CALL_ISA(keep_keys_cpu(context, args));
}

void one_token_attention(LaunchContext& context, const OneTokenAttention& args) {
  constexpr std::string_view op = "one_token_attention";
  require_at_least(op, "heads", args.heads, 1);
  require_at_least(op, "kv_heads", args.kv_heads, 1);
  require_at_least(op, "head_dim", args.head_dim, 1);
  if (args.heads % args.kv_heads != 0)
    throw ShapeError("[{}] {} heads cannot share {} key-value heads: need a divisor of heads.", op, args.heads,
                     args.kv_heads);
  require_at_least(op, "rows", args.rows, 0);
  require_at_least(op, "window", args.window, 0);
  if (args.rows == 0) return;
  require_pointers(op, {args.qkv, args.out, args.scores, args.sequences, args.tokens});
  require_room(op, args.cache, 1);
  for (int64_t r = 0; context.kind == DeviceKind::cpu && r < args.rows; ++r) {
    require_at_least(op, "token", args.tokens[r], 0);
    require_room(op, args.cache, args.tokens[r] + 1);
  }
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) {
    require_cuda_shape(op, args);
    return one_token_attention_cuda(context, args);
  }
  SLIP_CALL_ISA(one_token_attention_cpu(context, args));
}

void read_all(LaunchContext& context, const ReadAll& args) {
  constexpr std::string_view op = "read_all";
  require_at_least(op, "elems", args.elems, 0);
  require_pointers(op, {args.sum});
  if (args.elems > 0) require_pointers(op, {args.at});
  if (context.kind != DeviceKind::cpu) no_kernel(op, context.kind);
  SLIP_CALL_ISA(read_all_cpu(context, args));
}

int64_t most_parts(const OneTokenAttention& args) {
  const int64_t most = (args.cache.capacity - 1) / kPartTokens + 1;
  if (args.window == 0) return most;
  // The first visible token may be the last one of its block of keys.
  return std::min(most, (args.window + kKeyBlock - 2) / kPartTokens + 1);
}

int64_t attention_scores(const OneTokenAttention& args, DeviceKind kind) {
  if (kind == DeviceKind::cuda) return args.rows * args.heads * most_parts(args) * part_floats(args.head_dim);
  int64_t most = 0;
  for (int64_t r = 0; r < args.rows; ++r)
    most = std::max(most, key_cache_capacity(args.tokens[r] + 1) -
                              first_visible(args.tokens[r], args.window) / kKeyBlock * kKeyBlock);
  return args.rows * args.heads * most;
}

Cost few_rows_product_cost(const FewRowsProduct& args) {
  return {2 * args.rows * args.in * args.out,
          bytes_of(args.out * args.in, args.dtype) + 4 * args.rows * (args.in + args.out)};
}

Cost one_token_attention_cost(const OneTokenAttention& args, int64_t keys) {
  return {4 * args.heads * args.head_dim * keys, bytes_of(2 * args.kv_heads * args.head_dim * keys, args.cache.dtype) +
                                                     8 * args.heads * args.head_dim * args.rows};
}

}  // namespace slipstream::kernels

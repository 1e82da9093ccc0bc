// SPDX-License-Identifier: Apache-2.0
// Checks, costs and dispatch of the ops of text generation.

#include "kernels/decode/decode.h"

#include "engine/base/check.h"
#include "kernels/common/checks.h"

namespace slipstream::kernels {

void few_rows_product(LaunchContext& context, const FewRowsProduct& args) {
  constexpr std::string_view op = "few_rows_product";
  require_activation_dtype(op, args.dtype);
  require_at_least(op, "rows", args.rows, 0);
  require_at_least(op, "in", args.in, 1);
  require_at_least(op, "out", args.out, 0);
  if (args.rows > kFewRows) throw ShapeError("[{}] rows is {}, need at most {}.", op, args.rows, kFewRows);
  if (args.rows * args.out == 0) return;
  require_pointers(op, {args.x, args.weight, args.y});
  if (context.kind != DeviceKind::cpu) no_kernel(op, context.kind);
  SLIP_CALL_ISA(few_rows_product_cpu(context, args));
}

void one_token_attention(LaunchContext& context, const OneTokenAttention& args) {
  constexpr std::string_view op = "one_token_attention";
  require_at_least(op, "keys", args.keys, 1);
  require_at_least(op, "heads", args.heads, 1);
  require_at_least(op, "kv_heads", args.kv_heads, 1);
  require_at_least(op, "head_dim", args.head_dim, 1);
  if (args.heads % args.kv_heads != 0)
    throw ShapeError("[{}] {} heads cannot share {} key-value heads: need a divisor of heads.", op, args.heads,
                     args.kv_heads);
  require_at_least(op, "kv_stride", args.kv_stride, args.kv_heads * args.head_dim);
  require_pointers(op, {args.q, args.k, args.v, args.out, args.scores});
  if (context.kind != DeviceKind::cpu) no_kernel(op, context.kind);
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

Cost few_rows_product_cost(const FewRowsProduct& args) {
  return {2 * args.rows * args.in * args.out,
          bytes_of(args.out * args.in, args.dtype) + 4 * args.rows * (args.in + args.out)};
}

Cost one_token_attention_cost(const OneTokenAttention& args) {
  return {4 * args.heads * args.head_dim * args.keys,
          8 * args.keys * args.kv_heads * args.head_dim + 8 * args.heads * args.head_dim};
}

}  // namespace slipstream::kernels

// SPDX-License-Identifier: Apache-2.0
// Checks, costs and dispatch of attention.

#include "kernels/attention/attention.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/common/checks.h"

namespace slipstream::kernels {
namespace {

template <typename Args>
void check(std::string_view op, const Args& args) {
  require_activation_dtype(op, args.dtype);
  require_at_least(op, "batch", args.batch, 0);
  require_at_least(op, "tokens", args.tokens, 0);
  require_at_least(op, "heads", args.heads, 1);
  require_at_least(op, "kv_heads", args.kv_heads, 1);
  require_at_least(op, "head_dim", args.head_dim, 1);
  if (args.heads % args.kv_heads != 0)
    throw ShapeError("[{}] {} heads cannot share {} key-value heads: need a divisor of heads.", op, args.heads,
                     args.kv_heads);
  if (args.head_dim > kAttentionHeadDimMax)
    throw ShapeError("[{}] head_dim is {}, need at most {}. Use more heads.", op, args.head_dim, kAttentionHeadDimMax);
  if (!(args.scale > 0.0f)) throw ShapeError("[{}] scale is {}, need a positive number.", op, args.scale);
  require_at_least(op, "window", args.window, 0);
  for (const ContextChunks& chunks : {args.queries, args.keys})
    if (chunks.tokens > 0 && chunks.local_tokens() != args.tokens)
      throw ShapeError("[{}] {} tokens are not a rank's share of a sequence of {} over {} ranks.", op, args.tokens,
                       chunks.tokens, chunks.ranks);
  require_at_least(op, "q_stride", args.q_stride, args.heads * args.head_dim);
  require_at_least(op, "kv_stride", args.kv_stride, args.kv_heads * args.head_dim);
  require_at_least(op, "out_stride", args.out_stride, args.heads * args.head_dim);
}

/// The cost of `products` over `pairs` of queries and keys per head: 2 products forward, 5 backward.
template <typename Args>
Cost scores(const Args& args, int64_t queries, int64_t keys, int64_t products, int64_t pairs, int64_t bytes) {
  const int64_t flops = 2 * products * args.batch * args.heads * args.head_dim * pairs;
  return {flops,
          bytes,
          {{.kind = KernelKind::scores,
            .backward = products > 2,
            .flops = flops,
            .bytes = bytes,
            .rows = queries,
            .cols = keys,
            .depth = args.head_dim,
            .count = args.batch * args.heads}}};
}

template <typename Args>
Cost cost(const Args& args, int64_t products, int64_t rows_per_head) {
  const int64_t seen =
      args.window > 0 ? std::min(args.window, args.tokens) : args.tokens;  // the keys that the last token sees
  const int64_t pairs = seen * (seen + 1) / 2 + (args.tokens - seen) * seen;
  const int64_t rows = rows_per_head * (args.heads + args.kv_heads) * args.batch * args.tokens;
  return scores(args, args.tokens, args.tokens, products, pairs,
                bytes_of(rows * args.head_dim, args.dtype) + 4 * args.batch * args.heads * args.tokens);
}

struct Range {
  int64_t begin, count;
};
/// The positions of a rank's tokens [begin, begin + count): those in its early chunk, then those in its late one.
std::array<Range, 2> positions_of(const ContextChunks& chunks, int64_t begin, int64_t count) {
  const int64_t early = std::clamp<int64_t>(chunks.chunk_tokens() - begin, 0, count);
  return {Range{chunks.position(begin), early}, Range{chunks.position(begin + early), count - early}};
}

/// The number of pairs of a query and a key that is at least `distance` positions before it.
int64_t pairs_apart(const Range& queries, const Range& keys, int64_t distance) {
  const auto keys_up_to = [&](int64_t last) {  // sum of min(max(y, 0), keys.count) over y <= last
    const int64_t rising = std::clamp<int64_t>(last, 0, keys.count);
    return rising * (rising + 1) / 2 + std::max<int64_t>(last - keys.count, 0) * keys.count;
  };
  const int64_t of_first = queries.begin - distance - keys.begin + 1;  // keys of the first query, if they had no end
  return keys_up_to(of_first + queries.count - 1) - keys_up_to(of_first - 1);
}

/// The number of pairs of the block that the window leaves.
template <typename Args>
int64_t pairs_of(const Args& args) {
  const auto& all = args.all;
  const AttentionBlock& block = args.block;
  if (all.window == 0) return block.pairs();
  int64_t pairs = 0;
  for (const Range& queries : positions_of(all.queries, block.first_query, block.queries))
    for (const Range& keys : positions_of(all.keys, block.first_key, block.keys))
      pairs += pairs_apart(queries, keys, 0) - pairs_apart(queries, keys, all.window);
  return pairs;
}

/// The same work without a window that hides nothing, or without keys if the window hides them from all queries. In the
/// second case, only a last block has work for the queries.
template <typename Args>
Args without_hidden(const Args& args) {
  Args rest = args;
  if (args.all.window == 0 || args.first) return rest;
  const int64_t pairs = pairs_of(args);
  if (pairs == args.block.pairs()) rest.all.window = 0;
  if (pairs == 0)
    rest.block = {.first_query = args.block.first_query,
                  .queries = args.last ? args.block.queries : 0,
                  .first_key = 0,
                  .keys = 0,
                  .causal = false};
  return rest;
}

/// The rows of a block are moved once in the type, and carried ones (in and out) in float.
template <typename Args>
Cost block_cost(const Args& args, int64_t products, int64_t query_rows, int64_t key_rows, int64_t carried_rows) {
  const auto& all = args.all;
  const int64_t queries = all.heads * args.block.queries, keys = all.kv_heads * args.block.keys;
  return scores(
      all, args.block.queries, args.block.keys, products, pairs_of(args),
      all.batch * all.head_dim * (bytes_of(query_rows * queries + key_rows * keys, all.dtype) + 4 * carried_rows) +
          4 * all.batch * queries);
}

void check(std::string_view op, const AttentionBlock& block, int64_t tokens) {
  for (const auto& [first, count] :
       {std::pair(block.first_query, block.queries), std::pair(block.first_key, block.keys)}) {
    require_at_least(op, "the first row of a block", first, 0);
    require_at_least(op, "the rows of a block", count, 0);
    if (first + count > tokens)
      throw ShapeError("[{}] the block's rows {} to {} exceed {} tokens.", op, first, first + count, tokens);
  }
  if (block.causal && block.queries != block.keys)
    throw ShapeError("[{}] a causal block needs as many keys as queries: got {} and {}.", op, block.keys,
                     block.queries);
}

struct Fallbacks {
  std::mutex mutex;
  std::set<std::string> reasons;
};
Fallbacks& fallbacks() {
  static Fallbacks all;
  return all;
}

}  // namespace

void note_attention_fallback(const std::string& reason) {
  const std::lock_guard lock(fallbacks().mutex);
  fallbacks().reasons.insert(reason);
}
std::set<std::string> attention_fallbacks() {
  const std::lock_guard lock(fallbacks().mutex);
  return fallbacks().reasons;
}

void attention_forward(LaunchContext& context, const AttentionForward& args) {
  constexpr std::string_view op = "attention_forward";
  check(op, args);
  if (args.batch * args.tokens == 0) return;
  require_pointers(op, {args.q, args.k, args.v, args.out, args.lse});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return attention_forward_cuda(context, args);
  SLIP_CALL_ISA(attention_forward_cpu(context, args));
}

void attention_backward(LaunchContext& context, const AttentionBackward& args) {
  constexpr std::string_view op = "attention_backward";
  check(op, args);
  require_at_least(op, "dq_stride", args.dq_stride, args.heads * args.head_dim);
  require_at_least(op, "dkv_stride", args.dkv_stride, args.kv_heads * args.head_dim);
  if (args.batch * args.tokens == 0) return;
  require_pointers(op,
                   {args.dout, args.q, args.k, args.v, args.out, args.lse, args.dq, args.dk, args.dv, args.workspace});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return attention_backward_cuda(context, args);
  SLIP_CALL_ISA(attention_backward_cpu(context, args));
}

void attention_block_forward(LaunchContext& context, const AttentionBlockForward& args) {
  constexpr std::string_view op = "attention_block_forward";
  const AttentionForward& all = args.all;
  check(op, all);
  check(op, args.block, all.tokens);
  const AttentionBlockForward rest = without_hidden(args);
  if (all.batch * rest.block.queries == 0) return;
  require_pointers(op, {all.q});
  if (args.block.keys > 0) require_pointers(op, {all.k, all.v});
  if (args.last) require_pointers(op, {all.out, all.lse});
  if (!args.first || !args.last) require_pointers(op, {args.carried.out, args.carried.maximum, args.carried.sum});
  if (args.first) require_at_least(op, "the keys of a first block", args.block.keys, 1);
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  if (context.kind == DeviceKind::cuda) return attention_block_forward_cuda(context, rest);
  SLIP_CALL_ISA(attention_block_forward_cpu(context, rest));
}

void attention_block_backward(LaunchContext& context, const AttentionBlockBackward& args) {
  constexpr std::string_view op = "attention_block_backward";
  const AttentionBackward& all = args.all;
  check(op, all);
  check(op, args.block, all.tokens);
  require_at_least(op, "dq_stride", all.dq_stride, all.heads * all.head_dim);
  if (all.batch * all.tokens == 0) return;
  require_pointers(op, {all.dout, all.q, all.k, all.v, all.out, all.lse, all.workspace, args.dkv});
  if (args.last) require_pointers(op, {all.dq});
  if (!args.first || !args.last) require_pointers(op, {args.dq_sum});
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  const AttentionBlockBackward rest = without_hidden(args);
  if (context.kind == DeviceKind::cuda) return attention_block_backward_cuda(context, rest);
  SLIP_CALL_ISA(attention_block_backward_cpu(context, rest));
}

Cost attention_forward_cost(const AttentionForward& args) { return cost(args, 2, 2); }
Cost attention_backward_cost(const AttentionBackward& args) { return cost(args, 5, 4); }

Cost attention_block_forward_cost(const AttentionBlockForward& whole) {
  const AttentionBlockForward args = without_hidden(whole);
  return block_cost(args, 2, args.last ? 2 : 1, 2,
                    args.all.heads * args.block.queries * ((args.first ? 0 : 1) + (args.last ? 0 : 1)));
}
Cost attention_block_backward_cost(const AttentionBlockBackward& whole) {
  const AttentionBlockBackward args = without_hidden(whole);
  return block_cost(args, 5, args.last ? 4 : 3, 2,
                    args.all.heads * args.block.queries * ((args.first ? 0 : 1) + (args.last ? 0 : 1)) +
                        2 * args.all.kv_heads * args.all.tokens);
}

int64_t attention_backward_delta_elems(const AttentionBackward& args) {
  return round_up(args.batch * args.tokens * args.heads, 4);  // so that the sums after them are aligned to 16 bytes
}

int64_t attention_backward_workspace_elems(const AttentionBackward& args) {
  // cpu: dk and dv of every key-value head in float, with rows padded to whole tiles of the widest instruction set.
  // cuda: dout . out of every row of every head and, for heads for which sm_90a has kernels, the sums of dq after them.
  const int64_t rows = args.batch * args.tokens;
  const bool sums = args.head_dim == 64 || args.head_dim == 128;
  return std::max(rows * 2 * args.kv_heads * round_up(args.head_dim, 32),
                  attention_backward_delta_elems(args) + (sums ? rows * args.heads * args.head_dim : 0));
}

}  // namespace slipstream::kernels

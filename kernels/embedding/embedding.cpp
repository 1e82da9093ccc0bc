// SPDX-License-Identifier: Apache-2.0
// Checks, costs and dispatch of the embeddings.

#include "kernels/embedding/embedding.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "engine/base/check.h"
#include "kernels/common/checks.h"
#include "kernels/embedding/embedding_cpu.h"
#include "kernels/embedding/row_lists.h"

namespace slipstream::kernels {
namespace {

/// Returns the largest id plus 1. Throws: DataError unless lowest <= id < vocab for all ids (vocab 0: there is no upper
/// bound).
int64_t require_ids(std::string_view op, const int32_t* ids, int64_t count, int64_t vocab, int32_t lowest = 0) {
  int32_t low = lowest, high = -1;
  for (int64_t i = 0; i < count; ++i) {
    low = std::min(low, ids[i]);
    high = std::max(high, ids[i]);
  }
  if (low < lowest || (vocab > 0 && high >= vocab))
    throw DataError(
        "[{}] token id {} is outside the vocabulary of {}. Tokenize the data again with the model's tokenizer.", op,
        low < lowest ? low : high, vocab);
  return int64_t{high} + 1;
}

void require_positions(const int32_t* ids, int64_t count, int64_t rows) {
  const auto [low, high] = std::minmax_element(ids, ids + count);
  if (*low < 0 || *high >= rows)
    throw DataError("[embedding_forward] position {} is outside of the {} learned ones. Check the index of documents.",
                    *low < 0 ? *low : *high, rows);
}

/// Kernels count rows in 32 bits, up to a few thousand after the last one.
void require_listable(int64_t count) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() - (1 << 16);
  if (count > kMost)
    throw ShapeError("[embedding] {} rows in one list, need at most {}. Use smaller micro-batches.", count, kMost);
}

Chains chains_of(const int32_t* ids, int64_t count, int64_t vocab) {
  RowLists& lists = RowLists::mine();
  lists.build(ids, count, vocab);
  return {lists.firsts().data(), static_cast<int64_t>(lists.firsts().size()), lists.next().data()};
}

}  // namespace

void document_positions(LaunchContext& context, const DocumentPositions& args) {
  constexpr std::string_view op = "document_positions";
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  require_at_least(op, "batch", args.batch, 0);
  require_at_least(op, "tokens", args.tokens, 0);
  if (args.chunks.tokens > 0 && args.chunks.local_tokens() != args.tokens)
    throw ShapeError("[{}] {} tokens are not a rank's share of a sequence of {} over {} ranks.", op, args.tokens,
                     args.chunks.tokens, args.chunks.ranks);
  if (args.batch * args.tokens == 0) return;
  require_pointers(op, {args.begins, args.positions});
  if (context.kind == DeviceKind::cuda) return document_positions_cuda(context, args);
  for (int64_t row = 0; row < args.batch * args.tokens; ++row)
    args.positions[row] = static_cast<int32_t>(args.chunks.position(row % args.tokens)) - args.begins[row];
}

void embedding_forward(LaunchContext& context, const EmbeddingForward& args) {
  if (context.kind == DeviceKind::sim) no_kernel("embedding_forward", context.kind);
  require_at_least("embedding_forward", "batch", args.batch, 0);
  require_at_least("embedding_forward", "tokens", args.tokens, 0);
  require_at_least("embedding_forward", "width", args.width, 0);
  require_at_least("embedding_forward", "vocab", args.vocab, 0);
  require_activation_dtype("embedding_forward", args.dtype);
  if (args.batch * args.tokens * args.width == 0) return;
  require_pointers("embedding_forward", {args.ids, args.table, args.y});
  if (context.kind == DeviceKind::cuda) return embedding_forward_cuda(context, args);
  require_ids("embedding_forward", args.ids, args.batch * args.tokens, args.part ? 0 : args.vocab);
  if (args.positions && args.position_ids)
    require_positions(args.position_ids, args.batch * args.tokens, args.position_rows);
  SLIP_CALL_ISA(embedding_forward_cpu(context, args))
}

void embedding_backward(LaunchContext& context, const EmbeddingBackward& args) {
  if (context.kind == DeviceKind::sim) no_kernel("embedding_backward", context.kind);
  require_at_least("embedding_backward", "rows", args.rows, 0);
  require_at_least("embedding_backward", "width", args.width, 0);
  require_at_least("embedding_backward", "vocab", args.vocab, 0);
  require_activation_dtype("embedding_backward", args.dtype);
  if (args.rows > 0) require_pointers("embedding_backward", {args.ids, args.dy});
  if (args.vocab * args.width == 0 && args.rows == 0) return;
  require_pointers("embedding_backward", {args.dtable});
  require_listable(args.rows);
  if (context.kind == DeviceKind::cuda) return embedding_backward_cuda(context, args);
  require_ids("embedding_backward", args.ids, args.rows, args.part ? 0 : std::max<int64_t>(args.vocab, 1));
  SLIP_CALL_ISA(embedding_backward_cpu(context, args))
}

void position_backward(LaunchContext& context, const PositionBackward& args) {
  if (context.kind == DeviceKind::sim) no_kernel("position_backward", context.kind);
  require_at_least("position_backward", "batch", args.batch, 0);
  require_at_least("position_backward", "tokens", args.tokens, 0);
  require_at_least("position_backward", "width", args.width, 0);
  require_at_least("position_backward", "positions", args.positions, 0);
  require_activation_dtype("position_backward", args.dtype);
  if (args.positions < args.tokens)
    throw ShapeError("[position_backward] {} tokens need at least as many positions: got {}.", args.tokens,
                     args.positions);
  if (args.positions * args.width == 0) return;
  require_pointers("position_backward", {args.dpositions});
  if (args.batch * args.tokens > 0) require_pointers("position_backward", {args.dy});
  if (context.kind == DeviceKind::cuda) return position_backward_cuda(context, args);
  SLIP_CALL_ISA(position_backward_cpu(context, args))
}

void embedding_rows_pack(LaunchContext& context, const EmbeddingRowsPack& args) {
  if (context.kind == DeviceKind::sim) no_kernel("embedding_rows_pack", context.kind);
  require_at_least("embedding_rows_pack", "capacity", args.capacity, 0);
  require_at_least("embedding_rows_pack", "tokens_total", args.tokens_total, 0);
  require_at_least("embedding_rows_pack", "width", args.width, 0);
  require_activation_dtype("embedding_rows_pack", args.dtype);
  if (args.capacity != args.tokens_total)
    throw ShapeError("[embedding_rows_pack] a row per token: got capacity = {}, need tokens_total = {}.", args.capacity,
                     args.tokens_total);
  if (args.tokens_total == 0) return;
  require_pointers("embedding_rows_pack", {args.ids, args.row_ids});
  if (args.width > 0) require_pointers("embedding_rows_pack", {args.dy, args.rows});
  require_listable(args.tokens_total);
  if (context.kind == DeviceKind::cuda) return embedding_rows_pack_cuda(context, args);
  const int64_t vocab = require_ids("embedding_rows_pack", args.ids, args.tokens_total, 0);
  EmbeddingRowsPack local = args;
  thread_local std::vector<int32_t> held;  // ids from the table's first row; -1: in another part
  if (args.part) {
    held.resize(static_cast<size_t>(args.tokens_total));
    for (int64_t row = 0; row < args.tokens_total; ++row) {
      const int64_t id = args.ids[row] - args.first;
      held[static_cast<size_t>(row)] = id >= 0 && id < args.vocab ? static_cast<int32_t>(id) : -1;
    }
    local.ids = held.data();
  }
  const Chains chains = chains_of(local.ids, args.tokens_total, args.part ? args.vocab : vocab);
  SLIP_CALL_ISA(embedding_rows_pack_cpu(context, local, chains))
}

void embedding_rows_add(LaunchContext& context, const EmbeddingRowsAdd& args) {
  if (context.kind == DeviceKind::sim) no_kernel("embedding_rows_add", context.kind);
  require_at_least("embedding_rows_add", "ranks", args.ranks, 0);
  require_at_least("embedding_rows_add", "capacity", args.capacity, 0);
  require_at_least("embedding_rows_add", "width", args.width, 0);
  require_at_least("embedding_rows_add", "vocab", args.vocab, 0);
  const int64_t count = args.ranks * args.capacity;
  if (count * args.width == 0) return;
  require_pointers("embedding_rows_add", {args.row_ids, args.rows, args.dtable});
  require_listable(count);
  if (context.kind == DeviceKind::cuda) return embedding_rows_add_cuda(context, args);
  require_ids("embedding_rows_add", args.row_ids, count, std::max<int64_t>(args.vocab, 1), -1);
  const Chains chains = chains_of(args.row_ids, count, args.vocab);
  SLIP_CALL_ISA(embedding_rows_add_cpu(context, args, chains))
}

Cost document_positions_cost(const DocumentPositions& args) {
  return {args.batch * args.tokens, 8 * args.batch * args.tokens};
}

Cost embedding_forward_cost(const EmbeddingForward& args) {
  const int64_t rows = args.batch * args.tokens, elems = rows * args.width;
  return {args.positions ? elems : 0,
          bytes_of(2 * elems + (args.positions ? args.tokens * args.width : 0), args.dtype) +
              (args.positions && args.position_ids ? 8 : 4) * rows};
}

Cost embedding_backward_cost(const EmbeddingBackward& args) {
  const int64_t elems = args.rows * args.width;
  return {elems, bytes_of(elems, args.dtype) + 8 * elems + 4 * args.rows +
                     (args.accumulate ? 0 : 4 * args.vocab * args.width)};
}

Cost position_backward_cost(const PositionBackward& args) {
  const int64_t elems = args.batch * args.tokens * args.width;
  const int64_t table_bytes = 4 * args.width * (args.accumulate ? 2 * args.tokens : args.positions);
  return {elems, bytes_of(elems, args.dtype) + table_bytes};
}

Cost embedding_rows_pack_cost(const EmbeddingRowsPack& args) {
  const int64_t elems = args.tokens_total * args.width;
  return {elems, bytes_of(elems, args.dtype) + 4 * elems + 8 * args.tokens_total};
}

}  // namespace slipstream::kernels

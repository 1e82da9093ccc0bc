// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a work computes, as far as sums over ranks are concerned. A proof of a plan follows values through the works by
// means of these declarations (comm/rehearse/reductions.h). A work without a declaration computes values that no update
// accepts.

#include <cstdint>

namespace slipstream {

/// The first operands are those that a rule names, in the order of Work::reads. Further activations among the reads
/// must belong to the same rows.
enum class Rule : uint8_t {
  undeclared,
  rows,       // computes every row of the results from the same rows of the operands: norms, activations, sums, dropout
  sequences,  // computes results from all rows of the same sequence: attention
  order,      // choices or counts of tokens: the order of the rows of experts, in round `step`
  reorder,    // rows, their order, ...: rows of tokens in the order of experts, or the sums of a token's rows
  product,    // x, weight, bias (or an order of rows): y = x weight^T + bias
  input_gradient,   // dy, weight: dx = dy weight
  weight_gradient,  // x, dy: sums over the rows of dy^T x, and of dy
  lookup,           // ids, table, positions: rows of the table, or zeros for words whose rows another rank holds
  scatter,          // ids, dx: sums over the rows, by word or position
  losses,           // logits, targets: losses of rows, their sum, and the gradient of the logits in their place
  statistics,       // logits: what a rank with some of the columns contributes to the losses of rows
  merged_losses,    // the statistics of all ranks: results as of `losses`
  count,            // adds a sum of losses to that of the step
  copy,             // copies the operands, in whole or in parts
  own_part,         // takes the rows that this rank multiplies with from weights that every rank of a layer has
  add,              // the sum of the operands
  clear,            // zeros
  late_rows,        // the counts of all ranks: a number of the rows of this rank's tokens
  tally,            // counts, for every sequence, over its tokens on this rank
  attention_block,  // q, keys of the rank `step` further on, state of earlier blocks: the state with these keys
  /// dout, q, ..., and keys if another rank owns them: the gradient of the keys, and a sum of the gradient of q.
  attention_block_gradient,
};

/// How a sum over rows, or Rule::add, treats the previous contents of its destination.
enum class Adds : uint8_t {
  never,
  as_planned,    // Frame::accumulate
  later_passes,  // in every micro-batch except the first
  always,
};

struct Meaning {
  Rule rule = Rule::undeclared;
  uint8_t results = 1;  // the number of results, which are the first writes
  /// The number of writes after them that are sums over the rows of reads[rows_of]; the others are workspace.
  uint8_t sums = 0;
  uint8_t rows_of = 0;
  Adds adds = Adds::never;
  uint8_t use = 0;          // for a parameter that a model uses twice: the number of the use whose gradient this is
  bool whole_rows = false;  // a row must have all its columns
  bool over_heads = false;  // the sums have a place for all heads, and this rank adds only those of its own
  int8_t once = -1;  // the index into reads of an operand that only the first rank of those that share a layer adds
  int16_t step = 0;  // the step of a ring, or the round of rows
  int64_t mean_over = 0;   // losses: the tokens whose mean loss the gradient belongs to
  int64_t first_row = -1;  // dropout: the row of the micro-batch with which the mask begins
  int64_t rows = 0;        // dropout: the number of rows
};

/// Returns true if the rank with this index among those that share a layer adds the operands of Meaning::once.
constexpr bool adds_once(int tensor_index) { return tensor_index == 0; }

}  // namespace slipstream

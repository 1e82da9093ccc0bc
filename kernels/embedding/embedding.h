// SPDX-License-Identifier: Apache-2.0
#pragma once
// Token and position embeddings: look-up, dense gradients, and the gradient as a list of rows for communication.
//
// Tables and activations are f32 or bf16 (`dtype`), gradients are float. No two operands may overlap. Sums are computed
// in token order (in rank order for RowsAdd), starting from +0 and in float, for any number of threads: threads share
// the width, never the rows. Every id must be in the vocabulary.

#include <cstdint>

#include "engine/base/context_chunks.h"
#include "engine/base/dtype.h"
#include "engine/device/work.h"

namespace slipstream::kernels {

/// positions[b, t] = the place of the token in its document: its place in the sequence minus begins[b, t].
struct DocumentPositions {
  const int32_t* begins = nullptr;  // [batch, tokens]: places in the sequence of the documents' first tokens
  int32_t* positions = nullptr;     // [batch, tokens]
  int64_t batch = 0, tokens = 0;
  ContextChunks chunks = {};  // places of the tokens in whole sequences; without tokens: 0 to `tokens`
};

/// y[b, t] = table[ids[b, t]] + positions[t], or + positions[position_ids[b, t]].
struct EmbeddingForward {
  const int32_t* ids = nullptr;     // [batch, tokens]
  const void* table = nullptr;      // [vocabulary, width]
  const void* positions = nullptr;  // optional: [at least tokens, width]
  void* y = nullptr;                // [batch, tokens, width]
  int64_t batch = 0, tokens = 0, width = 0;
  DType dtype = DType::f32;
  int64_t vocab = 0;  // 0: unknown, ids are only checked not to be negative
  int64_t first = 0;  // id of the table's first row
  bool part =
      false;  // the table is a part of a larger one, its rows first .. first + vocab: the row of another id is zero
  const int32_t* position_ids = nullptr;  // optional: [batch, tokens], each below position_rows
  int64_t position_rows = 0;
};

/// dtable[ids[row]] += dy[row] in row order; without `accumulate` dtable starts from 0.
struct EmbeddingBackward {
  const int32_t* ids = nullptr;  // [rows]
  const void* dy = nullptr;      // [rows, width]
  float* dtable = nullptr;       // [vocab, width]
  int64_t rows = 0, width = 0, vocab = 0;
  DType dtype = DType::f32;
  bool accumulate = false;
  int64_t first = 0;  // id of the table's first row
  bool part = false;  // the table is a part of a larger one, its rows first .. first + vocab: other ids are left out
};

/// dpositions[t] (+)= sum over batch, in order, of dy[b, t]. Without `accumulate`, rows tokens..positions become 0.
/// With position_ids the gradient is EmbeddingBackward, with the same order of sums.
struct PositionBackward {
  const void* dy = nullptr;     // [batch, tokens, width]
  float* dpositions = nullptr;  // [positions, width]
  int64_t batch = 0, tokens = 0, width = 0, positions = 0;
  DType dtype = DType::f32;
  bool accumulate = false;
};

/// The gradient of EmbeddingBackward as rows, in which equal ids are combined. The row of an id's first occurrence
/// holds the sum in token order. Later occurrences, and ids that are not in the table, get row_ids = -1 and a row of
/// zeros.
struct EmbeddingRowsPack {
  const int32_t* ids = nullptr;                       // [tokens_total]
  const void* dy = nullptr;                           // [tokens_total, width]
  int32_t* row_ids = nullptr;                         // [capacity]
  float* rows = nullptr;                              // [capacity, width]
  int64_t capacity = 0, tokens_total = 0, width = 0;  // capacity == tokens_total
  DType dtype = DType::f32;
  int64_t first = 0,
          vocab = 0;  // part: the table is a part of a larger one, its rows first .. first + vocab; row_ids count from
                      // its first row
  bool part = false;
};

/// dtable[v] += (sum over ranks, in rank order, of that rank's row for v). The sum over ranks is computed first and
/// added once. This gives the bits of a dense EmbeddingBackward on every rank, summed in rank order and added to dtable
/// (except that a -0 of dtable without rows may become +0).
struct EmbeddingRowsAdd {
  const int32_t* row_ids = nullptr;  // [ranks, capacity], -1: no row
  const float* rows = nullptr;       // [ranks, capacity, width]
  float* dtable = nullptr;           // [vocab, width]
  int64_t ranks = 0, capacity = 0, width = 0, vocab = 0;
};

/// Enqueues on cuda, blocks on cpu. Throws: ShapeError (sizes, dtype, null operand), DataError (an id outside the
/// vocabulary, before anything is written), ResourceError (device).
void document_positions(LaunchContext& context, const DocumentPositions& args);
void embedding_forward(LaunchContext& context, const EmbeddingForward& args);
void embedding_backward(LaunchContext& context, const EmbeddingBackward& args);
void position_backward(LaunchContext& context, const PositionBackward& args);
void embedding_rows_pack(LaunchContext& context, const EmbeddingRowsPack& args);
void embedding_rows_add(LaunchContext& context, const EmbeddingRowsAdd& args);

/// Pure. One flop per added element. Rows that are used are moved once, and tables that are zeroed are written once.
/// The number of equal ids is not known, so all count as different. Pointers may be null.
Cost document_positions_cost(const DocumentPositions& args);
Cost embedding_forward_cost(const EmbeddingForward& args);
Cost embedding_backward_cost(const EmbeddingBackward& args);
Cost position_backward_cost(const PositionBackward& args);
Cost embedding_rows_pack_cost(const EmbeddingRowsPack& args);

/// Run the op on one device, for arguments that are checked and not empty. CUDA enqueues, or throws ResourceError.
/// Ids in device memory cannot be refused: an id outside the vocabulary or the positions turns its row into NaN or is
/// left out of a gradient. Nothing is read or written out of bounds.
void document_positions_cuda(LaunchContext& context, const DocumentPositions& args);
void embedding_forward_cuda(LaunchContext& context, const EmbeddingForward& args);
void embedding_backward_cuda(LaunchContext& context, const EmbeddingBackward& args);
void position_backward_cuda(LaunchContext& context, const PositionBackward& args);
void embedding_rows_pack_cuda(LaunchContext& context, const EmbeddingRowsPack& args);
void embedding_rows_add_cuda(LaunchContext& context, const EmbeddingRowsAdd& args);

}  // namespace slipstream::kernels

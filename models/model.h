// SPDX-License-Identifier: Apache-2.0
#pragma once
// Builds the spec of a model: its parameters, buffers and pieces, with explicit forward and backward.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/context_chunks.h"
#include "engine/base/modes.h"
#include "engine/plan/buffers.h"
#include "engine/plan/model_spec.h"
#include "kernels/rope/rope.h"

namespace slipstream::models {

/// Rates of dropout in training; evaluation has none. Masks depend on nothing else than `seed`, the step, the number of
/// the sequence in the global batch, the place in the model, the position and the feature (kernels/dropout).
struct DropoutRates {
  double embedding = 0;  // of the sum of embeddings
  double residual = 0;   // of the outputs of attention and of the MLP, before they are added to the residual
  double attention = 0;  // of the weights of values, after the softmax
  uint64_t seed = 0;

  bool any() const { return embedding > 0 || residual > 0 || attention > 0; }
};

struct Architecture;
struct ModelOptions {
  Family family = Family::gpt2;
  Architecture (*table)(const ModelOptions&) = nullptr;  // not null: instead of the family's layers
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;  // 0: width / heads
  int64_t width = 0;
  int64_t ffn_width = 0;
  int64_t context = 0;  // longest sequence; learned positions and rotary tables have this many rows
  int64_t vocab = 0;
  bool tie_embeddings = true;
  float rope_theta = 10000;
  kernels::RopeScaling rope_scaling = {};
  bool documents = false;                   // attention does not cross documents
  int64_t window = 0;                       // tokens that a token attends to, itself included; 0: all before it
  std::vector<int64_t> window_layers = {};  // layers with the window, ascending; empty: all
  float norm_eps = 1e-5f;
  DropoutRates dropout = {};
  DType dtype = DType::f32;  // of weights in use and activations; gradients are float

  bool trains = true;  // false: a forward pass alone, whose layers share their activations
  int64_t batch = 0;   // sequences of a micro-batch
  int64_t tokens = 0;  // of a sequence, <= context; this rank's share
  int context_ranks =
      1;  // ranks that share a sequence, this one as number context_rank: tokens x context_ranks <= context
  int context_rank = 0;
  int64_t global_tokens = 0;  // of a step: the gradient is the mean over these
  int micro_batches = 1;      // of a step, on this rank
  int ranks = 1;              // ranks that exchange embedding rows; all hold the same parameters
  bool split_tied_embedding = true;
  std::vector<int> cuts;    // layers before which another part of the model begins
  bool ends_apart = false;  // with cuts: embedding and head are on different pipeline stages
  bool split_backward =
      false;       // output gradients outlive the backward pass, so that weight gradients can be delayed (zero-bubble)
  int tensor = 1;  // ranks that share heads, hidden units and vocabulary
  int tensor_index = 0;            // of this rank among them
  bool sequence_parallel = false;  // they share the tokens of norms and residuals, too
  int tensor_chunks = 1;           // of the tokens: one travels while the next is computed; see token_chunks()
  bool whole_layers = false;  // chunks of one layer end before the next begins: for layers in slots of memory (ZeRO
                              // stages 2 and 3)
  int64_t head_chunk_bytes = 25 << 20;  // of the head's weight gradient: smaller chunks can be sent earlier
  int64_t head_tokens = 0;              // most tokens whose logits are in memory at once; 0: all of a micro-batch

  int64_t size_of_head() const { return head_dim > 0 ? head_dim : width / heads; }
  /// The window of a layer; 0: none.
  int64_t window_of(int64_t layer) const {
    return window_layers.empty() || std::binary_search(window_layers.begin(), window_layers.end(), layer) ? window : 0;
  }
  ContextChunks chunks() const {
    return {.tokens = tokens * context_ranks, .ranks = context_ranks, .rank = context_rank};
  }
};

/// Pure. Number of chunks of a micro-batch's tokens: the largest up to `asked` into which they divide equally, with
/// sequence parallelism also among the ranks.
int token_chunks(int64_t rows, int asked, int ranks, bool sequence_parallel);

/// The page docs/reference/models.md. Pure.
std::string supported_models_markdown();

/// Pure, except that it adds the model's buffers to `buffers`. Returns the model's spec.
/// Throws: ConfigError with the two numbers when sizes do not fit.
ModelSpec build_model(const ModelOptions& options, Buffers& buffers);

}  // namespace slipstream::models

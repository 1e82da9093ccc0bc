// SPDX-License-Identifier: Apache-2.0
#pragma once
// Builds the spec of a model: its parameters, buffers and pieces, with explicit forward and backward passes.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/context_chunks.h"
#include "engine/base/expert_options.h"
#include "engine/base/modes.h"
#include "engine/plan/buffers.h"
#include "engine/plan/model_spec.h"
#include "kernels/rope/rope.h"

namespace slipstream::models {

/// Rates of dropout in training. Evaluation has none. Masks depend only on `seed`, the step, the number of the sequence
/// in the global batch, the place in the model, the position and the feature (kernels/dropout).
struct DropoutRates {
  double embedding = 0;  // for the sum of embeddings
  double residual = 0;   // for the outputs of attention and of the MLP before they are added to the residual
  double attention = 0;  // for the weights of values after the softmax
  uint64_t seed = 0;

  bool any() const { return embedding > 0 || residual > 0 || attention > 0; }
};

struct Architecture;
struct ModelOptions {
  Family family = Family::gpt2;
  Architecture (*table)(const ModelOptions&) = nullptr;  // if it is not null, it replaces the family's layers
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;  // 0: width / heads
  int64_t width = 0;
  int64_t ffn_width = 0;
  int64_t context = 0;  // the longest sequence, and the number of rows of learned positions and rotary tables
  int64_t vocab = 0;
  bool tie_embeddings = true;
  float rope_theta = 10000;
  kernels::RopeScaling rope_scaling = {};
  bool documents = false;  // attention does not cross documents
  int64_t window = 0;      // the number of tokens that a token attends to, including itself; 0: all tokens before it
  std::vector<int64_t> window_layers = {};  // the layers with the window, ascending; empty: all
  ExpertOptions experts = {};
  float norm_eps = 1e-5f;
  DropoutRates dropout = {};
  DType dtype = DType::f32;  // for weights in use and activations; gradients are float

  bool trains = true;  // false: there is only a forward pass, whose layers share their activations
  int64_t batch = 0;   // the sequences of a micro-batch
  int64_t tokens = 0;  // this rank's share of the tokens of a sequence, <= context
  int context_ranks =
      1;  // the ranks that share a sequence, this one as number context_rank: tokens x context_ranks <= context
  int context_rank = 0;
  int64_t global_tokens = 0;  // the tokens of a step: the gradient is the mean over these
  int micro_batches = 1;      // the micro-batches of a step on this rank
  int ranks = 1;              // the ranks that exchange embedding rows; all hold the same parameters
  bool split_tied_embedding = true;
  std::vector<int> cuts;    // the layers before which another part of the model begins
  bool ends_apart = false;  // with cuts: embedding and head are on different pipeline stages
  bool split_backward =
      false;  // output gradients outlive the backward pass, so that weight gradients can be delayed (zero-bubble)
  bool takes_turns = false;  // passes of two micro-batches take turns, and share no memory
  int tensor = 1;            // the ranks that share heads, hidden units and vocabulary
  int tensor_index = 0;      // the index of this rank among them
  int expert_ranks = 1;      // the ranks that divide the experts of a layer
  int expert_rank = 0;       // the index of this rank among them
  ExpertExchange expert_exchange = ExpertExchange::exact;  // with several of them; never automatic
  bool sequence_parallel = false;                          // these ranks also share the tokens of norms and residuals
  int tensor_chunks = 1;  // one chunk of tokens travels while the next is computed; see token_chunks()
  /// Chunks of one layer end before the next layer begins: for layers in slots of memory (ZeRO stages 2 and 3).
  bool whole_layers = false;
  int64_t head_chunk_bytes = 25 << 20;  // for the head's weight gradient: smaller chunks can be sent earlier
  int64_t head_tokens = 0;              // the most tokens whose logits are in memory at once; 0: all of a micro-batch

  int64_t size_of_head() const { return head_dim > 0 ? head_dim : width / heads; }
  /// Returns the window of a layer; 0: it has none.
  int64_t window_of(int64_t layer) const {
    return window_layers.empty() || std::binary_search(window_layers.begin(), window_layers.end(), layer) ? window : 0;
  }
  ContextChunks chunks() const {
    return {.tokens = tokens * context_ranks, .ranks = context_ranks, .rank = context_rank};
  }
};

/// Pure. Returns the number of chunks of a micro-batch's tokens: the largest number up to `asked` that divides them
/// equally, with sequence parallelism also among the ranks.
int token_chunks(int64_t rows, int asked, int ranks, bool sequence_parallel);

/// Returns the page docs/reference/models.md. Pure.
std::string supported_models_markdown();

/// Adds the model's buffers to `buffers` and returns the model's spec. Otherwise pure.
/// Throws: ConfigError that names both numbers if sizes do not fit.
ModelSpec build_model(const ModelOptions& options, Buffers& buffers);

}  // namespace slipstream::models

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The vocabulary that models are written in: each call adds one work, with its cost and accesses, to a piece.
//
// Letters: R rows (batch x tokens), D model width, H heads, F hidden width, V vocabulary.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/units.h"
#include "engine/plan/buffers.h"
#include "engine/plan/model_spec.h"
#include "models/model.h"

namespace slipstream::models {

/// One of `count` equal parts of the tokens of a micro-batch.
struct TokenChunk {
  int index = 0, count = 1;
};

/// y = x weight^T (+ bias): a weight [out, in] as this rank holds it.
struct Linear {
  uint32_t weight = 0;
  int64_t bias = -1;  // -1: none
  int64_t in = 0, out = 0;
  int64_t padding = 0;  // the last of `out`: rows of zeros
};

/// A layer norm if there is a bias, else an RMS norm; and what its forward pass leaves for its backward pass.
struct Norm {
  uint32_t weight = 0;
  int64_t bias = -1;
  Slice mean = {}, inv_std = {};  // float [own_rows]; an RMS norm has no mean
  Slice partial = {};             // gradients of weight and bias, when they are this rank's share of a sum

  std::vector<uint32_t> parameters() const {
    return bias < 0 ? std::vector{weight} : std::vector{weight, static_cast<uint32_t>(bias)};
  }
};

/// Builds a ModelSpec piece by piece.
class SpecBuilder {
 public:
  SpecBuilder(const ModelOptions& options, Buffers& buffers);

  const ModelOptions& options() const { return options_; }
  int64_t rows() const { return options_.batch * options_.tokens; }
  ModelSpec& spec() { return spec_; }

  // Tensor parallelism: what a rank has of heads, hidden units and vocabulary, and (sequence parallelism) of the tokens
  // of norms and residuals.
  bool shared() const { return options_.tensor > 1; }
  int64_t heads() const { return options_.heads / options_.tensor; }
  int64_t kv_heads() const { return options_.kv_heads / options_.tensor; }
  int64_t attention_width() const { return heads() * head_dim(); }
  int64_t ffn_width() const { return options_.ffn_width / options_.tensor; }
  int64_t vocab_rows() const;  // of a table, padding included
  /// Rows that products may leave out: those behind the tokens of a whole table. Of a part none, because the ranks that
  /// share a vocabulary multiply equal shapes.
  int64_t vocab_padding() const { return shared() ? 0 : vocab_rows() - options_.vocab; }
  bool own_tokens() const { return shared() && options_.sequence_parallel; }
  int64_t own_rows() const { return own_tokens() ? rows() / options_.tensor : rows(); }
  int chunks() const { return shared() ? options_.tensor_chunks : 1; }
  /// The index-th of `count` equal parts of a buffer of rows.
  Slice chunk(Slice rows, TokenChunk c) const;
  /// What this rank has of chunk c of a buffer of all rows: with sequence parallelism its sub-block, else the chunk.
  Slice own(Slice rows, TokenChunk c) const;
  /// Behind the current piece: chunk c of `partial` is summed over the ranks that share a layer; into chunk c of `sum`
  /// (own rows), or in place.
  void reduce(Slice partial, TokenChunk c, Slice sum = {});
  /// Behind the current piece, with sequence parallelism: chunk c of `all` from every rank's part of it, of which this
  /// one has `part`. Else nothing.
  void gather(Slice part, Slice all, TokenChunk c);
  /// Adds the pieces of token-wise stages in chunks: stage s of chunk c comes right after stage s - 1 of chunk c + 1,
  /// so that what is behind stage s - 1 of chunk c travels under it. On one rank stages of one name and layer are one
  /// piece. `add` is called for every piece.
  struct Stage {
    std::string piece, part;  // on one rank, and the rest of the name on several
    int layer = -1;
    std::function<void(TokenChunk)> body;
  };
  void in_chunks(const std::vector<Stage>& stages, int count, const std::function<void(uint32_t)>& add);
  /// A tensor of which each rank holds a part of dimension `dim`, of each of `blocks` equal blocks.
  NamedTensor held(NamedTensor whole, int dim, int blocks = 1) const;
  /// With sequence parallelism a norm sees this rank's tokens only: its gradients (float, `elems` together) are first
  /// made here, summed over the ranks behind the current piece, and added to those of the parameters by a later piece.
  /// Else empty, and nothing to do.
  Slice norm_partial(const std::string& name, int64_t elems);
  void sum_partial(Slice partial);
  void add_partial(Slice partial, const std::vector<uint32_t>& parameters);

  /// [rows, width] of the activation type; one instance per micro-batch in flight.
  Slice activation(const std::string& name, int64_t width);
  /// [own_rows, width]
  Slice own_activation(const std::string& name, int64_t width);
  /// float [elems], same instances.
  Slice statistics(const std::string& name, int64_t elems);
  /// The gradient of an output: `shared` among all of them, unless weight gradients wait and so each needs its own.
  Slice output_gradient(const std::string& name, int64_t width, Slice shared);
  /// Memory whose content does not outlive a layer; one instance.
  Slice scratch(const std::string& name, int64_t size_bytes);
  Slice batch_buffer(const std::string& name, int64_t size_bytes, Instances instances);

  /// Returns the parameter's index.
  uint32_t parameter(ParameterSpec parameter);
  uint32_t parameter(const std::string& name, std::vector<int64_t> shape, int layer, Init init,
                     bool transposed = false);
  Slice value(uint32_t parameter) const { return buffers_.whole(spec_.parameters[parameter].value); }
  Slice gradient(uint32_t parameter) const { return buffers_.whole(spec_.parameters[parameter].gradient); }

  /// Starts a piece; the following works belong to it. Returns its index.
  uint32_t begin(const std::string& name, int layer);
  void work(const std::string& name, Cost cost, std::vector<Slice> reads, std::vector<Slice> writes,
            std::function<void(LaunchContext&)> fn);
  /// The gradient of the whole parameter is complete after this piece.
  void ready(uint32_t parameter);
  void ready(uint32_t parameter, int64_t begin_elems, int64_t elems);
  /// Begins when the works of the piece are complete.
  void communicate(Communication communication) {
    spec_.pieces.back().communications.push_back(std::move(communication));
  }
  uint32_t current() const { return static_cast<uint32_t>(spec_.pieces.size() - 1); }

  /// What selective recomputation makes again.
  void cheap(Slice made) { spec_.cheap.push_back(made.buffer); }
  /// The works that `body` adds belong to no piece: they are how forward works run again.
  template <typename Body>
  void replay(Body body) {
    replaying_ = true;
    body();
    replaying_ = false;
  }

  // Works. How many rows they have is what their operands have: a buffer, or a chunk of it. Weights are [out, in].
  // `weight_gradient` and friends overwrite on the first micro-batch and add afterwards.
  void linear(Slice x, const Linear& w, Slice y, Slice pre_gelu = {}) { add_linear(x, w, y, pre_gelu, true); }
  /// linear() of which the sum over the ranks that share the layer is the result: the bias is added by the first.
  void partial_linear(Slice x, const Linear& w, Slice y) { add_linear(x, w, y, {}, options_.tensor_index == 0); }
  /// With `pre_gelu`, dx is the gradient of the value that GELU was taken of.
  void linear_input_gradient(Slice dy, const Linear& w, Slice dx, Slice pre_gelu = {});
  void linear_weight_gradient(Slice x, Slice dy, const Linear& w);
  /// y = norm(x + delta), the sum stored; without delta y = norm(x).
  void norm(Slice x, Slice delta, Slice sum, const Norm& n, Slice y);
  /// dx = (residual) + d norm(x); the norm's parameters are ready after the piece of the last chunk, or their shares on
  /// their way.
  void norm_gradient(Slice dy, Slice x, const Norm& n, Slice residual, Slice dx, TokenChunk c = {});
  /// y = silu(gate) up, gate_up [.., 2 width].
  void swiglu(Slice gate_up, Slice y, int64_t width);
  void swiglu_gradient(Slice dy, Slice gate_up, Slice dgate_up, int64_t width);
  /// Rotates q and k inside packed qkv, in place; `inverse` is the backward.
  void rotate(Slice qkv, bool inverse);
  void attention(Slice qkv, Slice out, Slice lse);
  void attention_gradient(Slice dout, Slice qkv, Slice out, Slice lse, Slice dqkv);

  /// take_batch: the staged batch becomes the current one. The first item of every plan.
  void take_batch();
  /// x (own rows) = table[ids] (+ positions). `partial`: memory for all rows when ranks share the tokens.
  void embed(uint32_t table, int64_t positions, Slice x, Slice partial);
  /// Token and output embeddings: each rank holds rows.
  uint32_t vocab_parameter(const std::string& name, int layer, Init init);
  /// Logits, losses and, when training, the gradient of the logits in their place.
  void head_losses(Slice hidden, uint32_t table, bool training);
  /// The last piece of a training and of an evaluating forward pass: logits and losses, or, where ranks share the
  /// vocabulary, the losses.
  void losses(Slice hidden, uint32_t table);
  /// head_losses() where ranks share the vocabulary: logits and their parts of chunk c; behind the last chunk the parts
  /// travel; then the losses.
  void head_part(Slice hidden, uint32_t table, TokenChunk c);
  void merge_losses(bool training);
  void add_loss();
  /// Backward of head_losses: the table's gradient in vocabulary chunks (one piece each), then d hidden.
  void head_gradient(Slice hidden, uint32_t table, Slice d_hidden, std::vector<uint32_t>& pieces);
  void head_weight_gradient(Slice hidden, uint32_t table, std::vector<uint32_t>& pieces);
  void head_input_gradient(uint32_t table, Slice d_hidden, TokenChunk c);
  /// Backward of embed.
  void embed_gradient(uint32_t table, int64_t positions, Slice dx);

  /// Rows of a buffer whose rows have `width` activations.
  int64_t rows_of(Slice slice, int64_t width) const { return slice.size_bytes / (width * size_of(options_.dtype)); }
  /// The memory of the first `width` columns' worth of a scratch buffer of all rows.
  Slice first_columns(Slice scratch, int64_t width) const {
    return {scratch.buffer, scratch.begin_bytes, bytes_of(rows() * width, options_.dtype)};
  }

  /// Whether `layer` (layers: the head) is the first of another pipeline stage than the one before. Then the sum that
  /// its first norm would form is formed before the cut: one tensor crosses instead of two.
  bool cut_before(int64_t layer) const;
  /// sum = x + delta: what ends a layer when a cut follows.
  void residual_sum(Slice x, Slice delta, Slice sum);
  /// Whether head and embedding share a table but not a rank: then each has a copy, with a gradient of its own.
  bool tied_apart() const { return options_.tie_embeddings && !options_.cuts.empty(); }
  /// The head's weights: the table itself, a copy of it on another stage, or weights of its own under `name`.
  uint32_t head_table(uint32_t table, const std::string& name, Init init);

  int64_t head_dim() const { return options_.width / options_.heads; }
  int64_t qkv_width() const { return (heads() + 2 * kv_heads()) * head_dim(); }
  Slice attention_workspace() const { return attention_workspace_; }

  /// Takes the finished spec.
  ModelSpec finish(std::string description);

 private:
  void add_linear(Slice x, const Linear& w, Slice y, Slice pre_gelu, bool adds_bias);
  void layer_norm(Slice x, Slice delta, Slice sum, const Norm& n, Slice y);
  void rms_norm(Slice x, Slice delta, Slice sum, const Norm& n, Slice y);
  void layer_norm_gradient(Slice dy, Slice x, const Norm& n, Slice residual, Slice dx, bool first);
  void rms_norm_gradient(Slice dy, Slice x, const Norm& n, Slice residual, Slice dx, bool first);
  Slice rotary_table();
  void communicate(Communication task, TokenChunk c);
  int64_t vocab_begin() const { return options_.tensor_index * vocab_rows(); }
  int64_t vocab_held() const;  // rows of a table that are no padding
  Slice loss_parts(int rank) const;
  /// Of a context-parallel rank: its rows of the table, in the order of its tokens; and the gradient of those added to
  /// the table's.
  Slice own_positions(Slice positions);
  void add_own_positions(Slice own, Slice gradient);

  ModelOptions options_;
  Buffers& buffers_;
  ModelSpec spec_;
  bool replaying_ = false;
  Slice ids_, targets_, batch_next_, batch_current_;
  Slice logits_, row_losses_, loss_part_, loss_;
  Slice loss_parts_;  // of all ranks that share the vocabulary
  Slice norm_workspace_, attention_workspace_, norm_partial_, rotary_;
};

}  // namespace slipstream::models

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The vocabulary in which models are written: each call adds one work, with its cost and accesses, to a piece.
//
// Letters: R rows (batch x tokens), D model width, H heads, F hidden width, V vocabulary.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/units.h"
#include "engine/plan/buffers.h"
#include "engine/plan/model_spec.h"
#include "kernels/attention/attention.h"
#include "models/model.h"

namespace slipstream::models {

/// One of `count` equal parts of the tokens of a micro-batch.
struct TokenChunk {
  int index = 0, count = 1;
};

/// y = x weight^T (+ bias): this rank's part of a weight [out, in].
struct Linear {
  uint32_t weight = 0;
  int64_t bias = -1;  // -1: none
  int64_t in = 0, out = 0;
  int64_t padding = 0;              // the last rows of `out`, all zeros
  Slice made = {}, made_bias = {};  // instead of the parameters' values: assembled by a work before
  bool sums_dy = true;  // with the weight's gradient comes the bias's; otherwise the work that writes dy adds its rows
};

/// A layer norm if there is a bias, otherwise an RMS norm, with the values that its forward pass keeps for its backward
/// pass.
struct Norm {
  uint32_t weight = 0;
  int64_t bias = -1;
  Slice mean = {}, inv_std = {};  // float [own_rows]; an RMS norm has no mean
  Slice partial = {};             // gradients of weight and bias, if they are this rank's share of a sum

  std::vector<uint32_t> parameters() const {
    return bias < 0 ? std::vector{weight} : std::vector{weight, static_cast<uint32_t>(bias)};
  }
};

/// RMS norms of the heads of queries and keys.
struct HeadNorms {
  int64_t q_weight = -1, k_weight = -1;  // -1: none
  Slice inv_rms = {};                    // float [rows, heads + kv_heads]
  Slice partial = {};                    // gradients of both weights, if they are this rank's share of a sum

  bool exist() const { return q_weight >= 0; }
  std::vector<uint32_t> parameters() const {
    return {static_cast<uint32_t>(q_weight), static_cast<uint32_t>(k_weight)};
  }
};

/// Pure. `slices` and, if there is one, `more`.
std::vector<Slice> with(std::vector<Slice> slices, const Slice& more);

/// Does a sum add to what its destination holds, in this item of the plan? The planner decides where the work does not.
inline bool adds(const Meaning& meaning, const LaunchContext& c) {
  return meaning.adds == Adds::always || (meaning.adds == Adds::as_planned && c.frame->accumulate) ||
         (meaning.adds == Adds::later_passes && c.frame->micro_batch > 0);
}

/// `dropout` with the samples at `numbers`, if there are any.
kernels::AttentionDropout with_samples(LaunchContext& c, kernels::AttentionDropout dropout, const Slice& numbers);

/// Builds a ModelSpec piece by piece.
class SpecBuilder {
 public:
  SpecBuilder(const ModelOptions& options, Buffers& buffers);

  const ModelOptions& options() const { return options_; }
  int64_t rows() const { return options_.batch * options_.tokens; }
  ModelSpec& spec() { return spec_; }

  // Tensor parallelism: this rank's share of heads, hidden units and vocabulary, and (with sequence parallelism) of the
  // tokens of norms and residuals.
  bool shared() const { return options_.tensor > 1; }
  int64_t heads() const { return options_.heads / options_.tensor; }
  int64_t kv_heads() const { return shares_kv() ? 1 : options_.kv_heads / options_.tensor; }
  /// More ranks than key-value heads: every rank has the whole weights of keys and values, and uses one head of them.
  bool shares_kv() const { return options_.tensor > options_.kv_heads; }
  int64_t attention_width() const { return heads() * head_dim(); }
  int64_t ffn_width() const { return options_.ffn_width / options_.tensor; }
  int64_t vocab_rows() const;  // of a table, including padding
  /// Rows that products may skip: those after the tokens of a whole table. None in a part of a table, because the ranks
  /// that share a vocabulary multiply equal shapes.
  int64_t vocab_padding() const { return shared() ? 0 : vocab_rows() - options_.vocab; }
  bool own_tokens() const { return shared() && options_.sequence_parallel; }
  int64_t own_rows() const { return own_tokens() ? rows() / options_.tensor : rows(); }
  int chunks() const { return shared() ? options_.tensor_chunks : 1; }
  /// The index-th of `count` equal parts of a buffer of rows.
  Slice chunk(Slice rows, TokenChunk c) const;
  /// This rank's part of chunk c of a buffer of all rows: with sequence parallelism its sub-block, otherwise the chunk.
  Slice own(Slice rows, TokenChunk c) const;
  /// The row of the micro-batch with which own() of a buffer of all rows begins.
  int64_t first_own_row(TokenChunk c) const {
    const int64_t rows_of_chunk = rows() / c.count;
    return c.index * rows_of_chunk + (own_tokens() ? options_.tensor_index * rows_of_chunk / options_.tensor : 0);
  }
  /// After the current piece: sums chunk c of `partial` over the ranks that share a layer, into chunk c of `sum` (own
  /// rows) or in place.
  void reduce(Slice partial, TokenChunk c, Slice sum = {});
  /// After the current piece, with sequence parallelism: gathers chunk c of `all` from the parts of all ranks, of which
  /// this one has `part`. Otherwise does nothing.
  void gather(Slice part, Slice all, TokenChunk c);
  /// Adds the pieces of token-wise stages in chunks: stage s of chunk c comes right after stage s - 1 of chunk c + 1,
  /// so that communication after stage s - 1 of chunk c overlaps with it. On one rank, stages with one name and layer
  /// are one piece. `add` is called for every piece.
  struct Stage {
    std::string piece, part;  // on one rank, and the rest of the name on several
    int layer = -1;
    std::function<void(TokenChunk)> body;
  };
  void in_chunks(const std::vector<Stage>& stages, int count, const std::function<void(uint32_t)>& add);
  /// A tensor of which each rank holds a part along dimension `dim`, of each of `blocks` equal blocks.
  NamedTensor held(NamedTensor whole, int dim, int blocks = 1) const;
  /// With sequence parallelism a norm sees only this rank's tokens: its gradients (float, `elems` in total) are first
  /// computed here, summed over the ranks after the current piece, and added to those of the parameters by a later
  /// piece. Otherwise returns an empty slice and does nothing.
  Slice norm_partial(const std::string& name, int64_t elems);
  /// Heads are shared wherever layers are: a share of the gradients of norms of heads, or an empty slice on one rank.
  Slice head_norm_partial(const std::string& name);
  void sum_partial(Slice partial);
  void add_partial(Slice partial, const std::vector<uint32_t>& parameters);

  /// [rows, width] of the activation type; one instance per micro-batch in flight.
  Slice activation(const std::string& name, int64_t width);
  /// [own_rows, width]
  Slice own_activation(const std::string& name, int64_t width);
  /// float [elems], same instances.
  Slice statistics(const std::string& name, int64_t elems);
  /// The gradient of an output: `shared` among all outputs, unless weight gradients are delayed and each needs its own.
  Slice output_gradient(const std::string& name, int64_t width, Slice shared);
  /// Memory whose content is not needed after a layer; one instance.
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
            const Meaning& meaning, std::function<void(LaunchContext&)> fn);
  /// Does this rank add the operand that only one of the ranks that share a layer adds?
  bool adds_once_operand(const Meaning& meaning) const { return meaning.once < 0 || adds_once(options_.tensor_index); }
  /// Declares that the gradient of the whole parameter is complete after this piece.
  void ready(uint32_t parameter);
  void ready(uint32_t parameter, int64_t begin_elems, int64_t elems);
  /// Adds communication that begins when the works of the piece are complete.
  void communicate(Communication communication) {
    spec_.pieces.back().communications.push_back(std::move(communication));
  }
  uint32_t current() const { return static_cast<uint32_t>(spec_.pieces.size() - 1); }

  /// Marks an activation that selective recomputation recomputes.
  void cheap(Slice made) { spec_.cheap.push_back(made.buffer); }
  /// The works that `body` adds belong to no piece: they describe how forward works run again.
  template <typename Body>
  void replay(Body body) {
    replaying_ = true;
    body();
    replaying_ = false;
  }

  // Works. Their number of rows is that of their operands: a buffer, or a chunk of it. Weights are [out, in].
  // `weight_gradient` and related works overwrite on the first micro-batch and add afterwards.
  void linear(Slice x, const Linear& w, Slice y, Slice pre_gelu = {}) { add_linear(x, w, y, pre_gelu, false); }
  /// linear() whose result is the sum over the ranks that share the layer: the first rank adds the bias.
  void partial_linear(Slice x, const Linear& w, Slice y) { add_linear(x, w, y, {}, true); }
  /// With `pre_gelu`, dx is the gradient of GELU's input, which `before` has made.
  void linear_input_gradient(Slice dy, const Linear& w, Slice dx, Slice pre_gelu = {}, const Linear& before = {});
  void linear_weight_gradient(Slice x, Slice dy, const Linear& w);
  /// y = norm(x + delta), and stores the sum; without delta y = norm(x).
  void norm(Slice x, Slice delta, Slice sum, const Norm& n, Slice y);
  /// dx = (residual) + d norm(x), the gradient of what a layer norm's `before` has added to x. The norm's parameters
  /// are ready, or their shares in flight, after the piece of the last chunk.
  void norm_gradient(Slice dy, Slice x, const Norm& n, Slice residual, Slice dx, TokenChunk c = {},
                     const Linear& before = {});
  /// qkv = raw with normed heads of queries and keys.
  void head_norm(Slice raw, const HeadNorms& n, Slice qkv);
  /// d: the gradient of qkv, then of raw, in place. The weights are ready, or their shares in flight, after this piece.
  void head_norm_gradient(Slice d, Slice raw, const HeadNorms& n);
  /// y = silu(gate) up, gate_up [.., 2 width].
  void swiglu(Slice gate_up, Slice y, int64_t width);
  void swiglu_gradient(Slice dy, Slice gate_up, Slice dgate_up, int64_t width);
  /// Rotates q and k inside packed qkv, in place; `inverse` is the backward.
  void rotate(Slice qkv, bool inverse);
  void attention(int layer, double dropout_rate, Slice qkv, Slice out, Slice lse);
  void attention_gradient(int layer, double dropout_rate, Slice dout, Slice qkv, Slice out, Slice lse, Slice dqkv);

  /// take_batch: makes the staged batch the current one. The first item of every plan.
  void take_batch();
  // With shares_kv(): `q` is this rank's part of the queries' weights, `kv` the whole weights of keys and values.
  /// The product of both, whose weights assemble_qkv() puts together.
  Linear joined_qkv(const Linear& q, const Linear& kv);
  void assemble_qkv(const Linear& q, const Linear& kv, const Linear& joined);
  /// Memory for this rank's share of the gradients of `kv`.
  Slice kv_partial(const Linear& kv);
  /// The gradient of q is ready after this piece, and the share of kv's in flight; add_kv_partial() is for a later one.
  void qkv_weight_gradient(Slice x, Slice dy, const Linear& q, const Linear& kv, Slice partial);
  void add_kv_partial(const Linear& kv, Slice partial);

  /// x (own rows) = table[ids] (+ positions). `partial`: memory for all rows when ranks share the tokens; if it is x,
  /// own rows are those of own().
  void embed(uint32_t table, int64_t positions, Slice x, Slice partial);
  /// Token and output embeddings: each rank holds some rows.
  uint32_t vocab_parameter(const std::string& name, int layer, Init init);
  /// y = x + dropout(d), without x y = dropout(d); rows from `first_row` of the micro-batch on. Also the gradient of d
  /// from that of y. `place`: its name in the model.
  void dropout(const std::string& place, double rate, Slice x, Slice d, Slice y, int64_t first_row);
  /// The numbers of the sequences, for dropout of attention's weights at `rate`; empty at 0.
  Slice sequence_numbers(double rate) const { return rate > 0 ? sequence_numbers_ : Slice{}; }
  /// Of the layer's weights; its samples are not yet known.
  kernels::AttentionDropout attention_dropout(int layer, double rate) const;
  // The head of one rank: logits, losses and gradients of a chunk of tokens, then those of the next in the same memory.
  /// The pieces of training, the first of a backward pass: d_hidden, and the table's gradient, which is complete in
  /// chunks of the vocabulary during the last chunk of tokens.
  void head(Slice hidden, uint32_t table, Slice d_hidden, std::vector<uint32_t>& pieces);
  /// Adds the last piece of an evaluation: losses only.
  void evaluate_head(Slice hidden, uint32_t table);
  // The head of ranks that share the vocabulary.
  /// Logits and their parts of chunk c; after the last chunk the parts travel.
  void head_part(Slice hidden, uint32_t table, TokenChunk c);
  /// Adds the last pieces of a training and of an evaluation forward pass: the losses.
  void shared_losses();
  void head_input_gradient(uint32_t table, Slice d_hidden, TokenChunk c);
  /// The table's gradient in vocabulary chunks, one piece each.
  void head_weight_gradient(Slice hidden, uint32_t table, std::vector<uint32_t>& pieces);
  /// Backward of embed.
  void embed_gradient(uint32_t table, int64_t positions, Slice dx);

  /// Rows of a buffer whose rows have `width` activations.
  int64_t rows_of(Slice slice, int64_t width) const { return slice.size_bytes / (width * size_of(options_.dtype)); }
  /// The first `width` columns' worth of memory of a scratch buffer of all rows.
  Slice first_columns(Slice scratch, int64_t width) const {
    return {scratch.buffer, scratch.begin_bytes, bytes_of(rows() * width, options_.dtype)};
  }

  /// Does `layer` (`layers`: the head) begin another pipeline stage than the layer before it? Then the sum for its
  /// first norm is computed before the cut: one tensor crosses instead of two.
  bool cut_before(int64_t layer) const;
  /// sum = x + delta: the end of a layer before a cut.
  void residual_sum(Slice x, Slice delta, Slice sum);
  /// Do head and embedding share a table but not a rank? Then each has a copy, with its own gradient.
  bool tied_apart() const { return options_.tie_embeddings && !options_.cuts.empty(); }
  /// The head's weights: the table itself, a copy of it on another stage, or separate weights under `name`.
  uint32_t head_table(uint32_t table, const std::string& name, Init init);

  /// 0 if it hides no token.
  int64_t window(int layer) const {
    const int64_t window = options_.window_of(layer);
    return window < options_.chunks().tokens ? window : 0;
  }
  int64_t head_dim() const { return options_.size_of_head(); }
  int64_t qkv_width() const { return (heads() + 2 * kv_heads()) * head_dim(); }
  Slice attention_workspace() const { return attention_workspace_; }
  /// int32 [batch, tokens]; empty without documents.
  Slice document_begins() const { return document_begins_; }

  /// Takes the finished spec.
  ModelSpec finish(std::string description);

 private:
  void add_linear(Slice x, const Linear& w, Slice y, Slice pre_gelu, bool bias_once);
  /// The bias gradient that the work which writes dy forms; empty if there is none.
  Slice summed_bias(const Linear& w) const {
    return w.bias < 0 || w.sums_dy ? Slice{} : gradient(static_cast<uint32_t>(w.bias));
  }
  void layer_norm(Slice x, Slice delta, Slice sum, const Norm& n, Slice y);
  void rms_norm(Slice x, Slice delta, Slice sum, const Norm& n, Slice y);
  void layer_norm_gradient(Slice dy, Slice x, const Norm& n, Slice residual, Slice dx, bool first, Slice dx_sums);
  void rms_norm_gradient(Slice dy, Slice x, const Norm& n, Slice residual, Slice dx, bool first);
  Slice rotary_table();
  void communicate(Communication task, TokenChunk c);
  Slice weight_of(const Linear& w) const { return w.made.size_bytes > 0 ? w.made : value(w.weight); }
  /// Empty: none.
  Slice bias_of(const Linear& w) const {
    if (w.made_bias.size_bytes > 0) return w.made_bias;
    return w.bias < 0 ? Slice{} : value(static_cast<uint32_t>(w.bias));
  }
  int64_t vocab_begin() const { return options_.tensor_index * vocab_rows(); }
  int64_t vocab_held() const;  // rows of a table without padding
  Slice loss_parts(int rank) const;
  /// Consecutive tokens of a micro-batch, or words of the vocabulary.
  struct Rows {
    int64_t begin = 0, count = 0;
    int64_t end() const { return begin + count; }
  };
  /// The tokens whose logits are in memory at once, at least one chunk.
  std::vector<Rows> head_chunks() const;
  Slice rows_of_all(Slice all, Rows r) const;
  Slice logits_of(Rows r) const;
  Linear head_product(uint32_t table) const;
  /// Logits, losses and, in training, the gradient of the logits in their place.
  void head_losses(Slice hidden, uint32_t table, Rows r, bool training);
  void head_weight_gradient(Slice hidden, uint32_t table, Rows r, std::vector<uint32_t>& pieces);
  /// The gradient of some words of the table: adds that of tokens r to that of the tokens before.
  void table_gradient(Slice hidden, uint32_t table, Rows r, Rows words);
  void merge_losses(bool training);
  /// Adds the loss of some tokens to that of the step; without `adds` and in the first micro-batch sets it.
  void add_loss(bool adds);
  /// With context parallelism: this rank's rows of the table, in the order of its tokens; and the addition of their
  /// gradient to the table's.
  Slice own_positions(Slice positions);
  void add_own_positions(Slice own, Slice gradient);
  /// Places of the tokens in their documents, as int32; empty without documents.
  Slice document_positions();
  void position_gradient(uint32_t positions, Slice dx);

  ModelOptions options_;
  Buffers& buffers_;
  ModelSpec spec_;
  bool replaying_ = false;
  Slice ids_, targets_, document_begins_, sequence_numbers_, batch_next_, batch_current_;
  Slice logits_, row_losses_, loss_part_, loss_;
  Slice qkv_weight_, qkv_bias_, kv_partial_;  // with shares_kv()
  Slice loss_parts_;                          // of all ranks that share the vocabulary
  Slice norm_workspace_, head_norm_workspace_, attention_workspace_, norm_partial_, head_norm_partial_, rotary_,
      own_positions_, document_positions_;
};

}  // namespace slipstream::models

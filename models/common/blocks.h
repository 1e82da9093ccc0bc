// SPDX-License-Identifier: Apache-2.0
#pragma once
// The vocabulary in which models are written: each call adds one work, with its cost and accesses, to a piece.
//
// Letters: R rows (batch x tokens), D model width, H heads, F hidden width, V vocabulary.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/units.h"
#include "engine/plan/buffers.h"
#include "engine/plan/model_spec.h"
#include "kernels/attention/attention.h"
#include "models/common/ops.h"
#include "models/model.h"

namespace slipstream::models {

/// Pure. `slices` and, if there is one, `more`.
std::vector<Slice> with(std::vector<Slice> slices, const Slice& more);

/// Does a sum add to what its destination holds, in this item of the plan? The planner decides where the work does not.
inline bool adds(const Meaning& meaning, const LaunchContext& c) {
  return meaning.adds == Adds::always || (meaning.adds == Adds::as_planned && c.frame->accumulate) ||
         (meaning.adds == Adds::later_passes && c.frame->micro_batch > 0);
}

/// `dropout` with the samples at `numbers`, if there are any.
kernels::AttentionDropout with_samples(LaunchContext& c, kernels::AttentionDropout dropout, const Slice& numbers);

class Ring;

/// Builds a ModelSpec piece by piece.
class SpecBuilder final : public Ops {
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
  void reduce(Slice partial, TokenChunk c, Slice sum = {}) override;
  /// After the current piece, with sequence parallelism: gathers chunk c of `all` from the parts of all ranks, of which
  /// this one has `part`. Otherwise does nothing.
  void gather(Slice part, Slice all, TokenChunk c);
  /// For ranks that share layers: adds the pieces of token-wise stages in chunks. Stage s of chunk c comes right after
  /// stage s - 1 of chunk c + 1, so that communication after stage s - 1 of chunk c overlaps with it.
  void in_chunks(const std::vector<Stage>& stages);
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

  /// The name of a layer's memory. Without a backward pass all layers share theirs.
  std::string of_layer(int layer, const std::string& name) const {
    return options_.trains ? fmt::format("layer{}.{}", layer, name) : name;
  }
  /// May the work that writes a gradient add its rows to a bias's? It sees all of them, and no weight gradient is
  /// delayed.
  bool sums_biases() const { return !shared() && !options_.split_backward; }
  /// What a forward pass keeps for the backward pass; one instance per micro-batch in flight. [rows, width] and
  /// [own_rows, width] of the activation type, and float [elems].
  Slice activation(const std::string& name, int64_t width) {
    return kept(name, bytes_of(rows() * width, options_.dtype));
  }
  Slice own_activation(const std::string& name, int64_t width) {
    return kept(name, bytes_of(own_rows() * width, options_.dtype));
  }
  Slice statistics(const std::string& name, int64_t elems) { return kept(name, bytes_of(elems, DType::f32)); }
  /// The gradient of an output: `shared` among all outputs, unless weight gradients are delayed and each needs its own.
  Slice output_gradient(const std::string& name, int64_t width, Slice shared) {
    return options_.split_backward ? activation(name, width) : shared;
  }
  /// Memory whose content is not needed after a layer; one instance. Requests with one name share it.
  Slice scratch(const std::string& name, int64_t size_bytes);
  Slice batch_buffer(const std::string& name, int64_t size_bytes, Instances instances);

  /// Returns the parameter's index.
  uint32_t parameter(ParameterSpec parameter);
  uint32_t parameter(const std::string& name, std::vector<int64_t> shape, int layer, Init init,
                     bool transposed = false);
  Slice value(uint32_t parameter) const { return buffers_.whole(spec_.parameters[parameter].value); }
  Slice gradient(uint32_t parameter) const { return buffers_.whole(spec_.parameters[parameter].gradient); }

  /// The following pieces belong to these lists of the spec, in the order in which they begin.
  void into(std::vector<std::vector<uint32_t>*> lists) { lists_ = std::move(lists); }
  /// Starts a piece; the following works belong to it.
  void begin(const std::string& name, int layer);
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
  void linear(Slice x, const Linear& w, Slice y) override { add_linear(x, w, y, {}, false); }
  void linear_gelu(Slice x, const Linear& w, Slice pre, Slice y) override { add_linear(x, w, y, pre, false); }
  void partial_linear(Slice x, const Linear& w, Slice y) override { add_linear(x, w, y, {}, true); }
  /// With `pre_gelu`, dx is the gradient of GELU's input, which `before` has made.
  void linear_input_gradient(Slice dy, const Linear& w, Slice dx, Slice pre_gelu = {}, const Linear& before = {});
  void linear_weight_gradient(Slice x, Slice dy, const Linear& w);
  void norm(Slice x, Slice delta, Slice sum, const Norm& n, Slice y) override;
  /// dx = (residual) + d norm(x), the gradient of what a layer norm's `before` has added to x. The norm's parameters
  /// are ready, or their shares in flight, after the piece of the last chunk.
  void norm_gradient(Slice dy, Slice x, const Norm& n, Slice residual, Slice dx, TokenChunk c = {},
                     const Linear& before = {});
  void head_norm(Slice raw, const HeadNorms& n, Slice qkv) override;
  /// d: the gradient of qkv, then of raw, in place. The weights are ready, or their shares in flight, after this piece.
  void head_norm_gradient(Slice d, Slice raw, const HeadNorms& n);
  void swiglu(Slice gate_up, Slice y, int64_t width) override;
  void swiglu_gradient(Slice dy, Slice gate_up, Slice dgate_up, int64_t width);
  void rotate(Slice qkv, bool inverse) override;
  /// With context parallelism further pieces begin; the last one stays open for later works. So does
  /// attention_gradient().
  void attention(const AttentionLayer& layer, double dropout_rate, Slice qkv, Slice out, Slice lse) override;
  /// With context parallelism: adds a piece that starts sending this rank's keys to attention_gradient(). Call it
  /// early: the pieces between hide the first exchange.
  void fetch_keys(int layer, Slice qkv);
  void attention_gradient(const AttentionLayer& layer, Slice dout, Slice qkv, Slice out, Slice lse, Slice dqkv);

  /// take_batch: makes the staged batch the current one. The first item of every plan.
  void take_batch();
  // With shares_kv(): `q` is this rank's part of the queries' weights, `kv` the whole weights of keys and values.
  /// The product of both, whose weights assemble_qkv() puts together.
  Linear joined_qkv(const Linear& q, const Linear& kv);
  void assemble_qkv(const Linear& q, const Linear& kv, const Linear& joined) override;
  /// The operands of all calls of joined_qkv().
  const std::vector<std::pair<Linear, Linear>>& joins() const { return joins_; }
  /// Memory for this rank's share of the gradients of `kv`.
  Slice kv_partial(const Linear& kv);
  /// The gradient of q is ready after this piece, and the share of kv's in flight; add_kv_partial() is for a later one.
  void qkv_weight_gradient(Slice x, Slice dy, const Linear& q, const Linear& kv, Slice partial);
  void add_kv_partial(const Linear& kv, Slice partial);

  void embed(uint32_t table, int64_t positions, Slice x, Slice partial) override;
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
  void head(Slice hidden, uint32_t table, Slice d_hidden);
  /// Adds the last piece of an evaluation: losses only.
  void evaluate_head(Slice hidden, uint32_t table);
  // The head of ranks that share the vocabulary.
  /// Logits and their parts of chunk c; after the last chunk the parts travel.
  void head_part(Slice hidden, uint32_t table, TokenChunk c);
  /// Adds the last pieces of a training and of an evaluation forward pass: the losses.
  void shared_losses();
  void head_input_gradient(uint32_t table, Slice d_hidden, TokenChunk c);
  /// The table's gradient in vocabulary chunks, one piece each.
  void head_weight_gradient(Slice hidden, uint32_t table) { head_weight_gradient(hidden, table, {0, rows()}); }
  /// Backward of embed.
  void embed_gradient(uint32_t table, int64_t positions, Slice dx);

  /// Rows of a buffer whose rows have `width` activations.
  int64_t rows_of(Slice slice, int64_t width) const { return slice.size_bytes / (width * size_of(options_.dtype)); }
  /// [rows, width] of scratch; layers that use one name after the other share it.
  Slice scratch_rows(const std::string& name, int64_t width) {
    return scratch(name, bytes_of(rows() * width, options_.dtype));
  }

  /// Does `layer` (`layers`: the head) begin another pipeline stage than the layer before it? Then the sum for its
  /// first norm is computed before the cut: one tensor crosses instead of two.
  bool cut_before(int64_t layer) const;
  /// sum = x + delta: the end of a layer before a cut.
  void residual_sum(Slice x, Slice delta, Slice sum);
  /// Do head and embedding share a table but not a rank? Then each has a copy, with its own gradient.
  bool tied_apart() const { return options_.tie_embeddings && options_.ends_apart; }
  /// The head's weights: the table itself, a copy of it on another stage, or separate weights under `name`.
  uint32_t head_table(uint32_t table, const std::string& name, Init init);

  /// 0 if it hides no token.
  int64_t window(const AttentionLayer& layer) const {
    return layer.window < options_.chunks().tokens ? layer.window : 0;
  }
  int64_t head_dim() const { return options_.size_of_head(); }
  int64_t qkv_width() const { return (heads() + 2 * kv_heads()) * head_dim(); }
  /// Without pointers; `kv_stride` in elements.
  kernels::AttentionForward attention_shape(const AttentionLayer& layer, int64_t kv_stride) const;
  kernels::AttentionBackward attention_gradient_shape(const AttentionLayer& layer, int64_t kv_stride) const;
  Slice attention_workspace() const { return attention_workspace_; }
  /// int32 [batch, tokens]; empty without documents.
  Slice document_begins() const { return document_begins_; }

  /// Takes the finished spec.
  ModelSpec finish(std::string description);

 private:
  Slice kept(const std::string& name, int64_t size_bytes);
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
  Ring* ring();  // null without context parallelism
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
  void head_weight_gradient(Slice hidden, uint32_t table, Rows r);
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
  std::shared_ptr<Ring> ring_;
  std::map<std::string, BufferId> scratch_;
  std::vector<std::pair<Linear, Linear>> joins_;
  std::vector<std::vector<uint32_t>*> lists_;
  bool replaying_ = false;
  Slice ids_, targets_, document_begins_, sequence_numbers_, batch_next_, batch_current_;
  Slice logits_, row_losses_, loss_part_, loss_;
  Slice loss_parts_;  // of all ranks that share the vocabulary
  Slice norm_workspace_, attention_workspace_, rotary_;
};

}  // namespace slipstream::models

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The operations in which models are written. Each call adds one work, with its cost and accesses, to a piece.
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

/// Pure. Returns `slices` and, if there is one, `more`.
std::vector<Slice> with(std::vector<Slice> slices, const Slice& more);

/// Returns true if a sum adds to what its destination holds, in this item of the plan. The planner decides this where
/// the work does not.
inline bool adds(const Meaning& meaning, const LaunchContext& c) {
  return meaning.adds == Adds::always || (meaning.adds == Adds::as_planned && c.frame->accumulate) ||
         (meaning.adds == Adds::later_passes && c.frame->micro_batch > 0);
}

/// Returns `dropout` with the samples at `numbers`, if there are any.
kernels::AttentionDropout with_samples(LaunchContext& c, kernels::AttentionDropout dropout, const Slice& numbers);

class Ring;

/// Builds a ModelSpec piece by piece.
class SpecBuilder final : public Ops {
 public:
  SpecBuilder(const ModelOptions& options, Buffers& buffers);

  const ModelOptions& options() const { return options_; }
  int64_t rows() const { return options_.batch * options_.tokens; }
  ModelSpec& spec() { return spec_; }

  // Under tensor parallelism, a rank has a share of heads, hidden units and vocabulary, and (with sequence parallelism)
  // of the tokens of norms and residuals.
  bool shared() const { return options_.tensor > 1; }
  int64_t heads() const { return options_.heads / options_.tensor; }
  int64_t kv_heads() const { return shares_kv() ? 1 : options_.kv_heads / options_.tensor; }
  /// Returns true if there are more ranks than key-value heads. Every rank then has the whole weights of keys and
  /// values, and uses one head of them.
  bool shares_kv() const { return options_.tensor > options_.kv_heads; }
  int64_t attention_width() const { return heads() * head_dim(); }
  int64_t ffn_width() const { return options_.ffn_width / options_.tensor; }
  int64_t vocab_rows() const;  // the rows of a table, including padding
  /// Returns the rows that products may skip: those after the tokens of a whole table. In a part of a table there are
  /// none, because the ranks that share a vocabulary multiply equal shapes.
  int64_t vocab_padding() const { return shared() ? 0 : vocab_rows() - options_.vocab; }
  bool own_tokens() const { return shared() && options_.sequence_parallel; }
  int64_t own_rows() const { return own_tokens() ? rows() / options_.tensor : rows(); }
  int chunks() const { return shared() ? options_.tensor_chunks : 1; }
  /// Returns the index-th of `count` equal parts of a buffer of rows.
  Slice chunk(Slice rows, TokenChunk c) const;
  /// Returns this rank's part of chunk c of a buffer of all rows: with sequence parallelism its sub-block, otherwise
  /// the chunk.
  Slice own(Slice rows, TokenChunk c) const;
  /// Returns the row of the micro-batch with which own() of a buffer of all rows begins.
  int64_t first_own_row(TokenChunk c) const {
    const int64_t rows_of_chunk = rows() / c.count;
    return c.index * rows_of_chunk + (own_tokens() ? options_.tensor_index * rows_of_chunk / options_.tensor : 0);
  }
  void reduce(Slice partial, TokenChunk c, Slice sum = {}) override;
  /// With sequence parallelism, gathers chunk c of `all` after the current piece from the parts of all ranks. This rank
  /// has `part`. Otherwise does nothing.
  void gather(Slice part, Slice all, TokenChunk c);
  /// For ranks that share layers: adds the pieces of token-wise stages in chunks. Stage s of chunk c comes right after
  /// stage s - 1 of chunk c + 1, with which the communication after stage s - 1 of chunk c overlaps.
  void in_chunks(const std::vector<Stage>& stages);
  /// Returns a tensor of which each rank holds a part of each of `blocks` equal blocks along dimension `dim`.
  NamedTensor held(NamedTensor whole, int dim, int blocks = 1) const;
  /// Returns memory for this rank's share of a norm's gradients (float, `elems` in total). With sequence parallelism, a
  /// norm sees only this rank's tokens. So its gradients are first computed here, then summed over the ranks after the
  /// current piece, and a later piece adds them to those of the parameters. Otherwise returns an empty slice and does
  /// nothing.
  Slice norm_partial(const std::string& name, int64_t elems);
  /// Does the same for norms of heads, which are shared wherever layers are. Returns an empty slice on one rank.
  Slice head_norm_partial(const std::string& name);
  void sum_partial(Slice partial);
  void add_partial(Slice partial, const std::vector<uint32_t>& parameters);

  /// Returns the name of a layer's memory. Without a backward pass, all layers share theirs.
  std::string of_layer(int layer, const std::string& name) const {
    return options_.trains ? fmt::format("layer{}.{}", layer, name) : name;
  }
  /// Returns true if the work that writes a gradient may add its rows to the gradient of a bias: the work sees all
  /// rows, and no weight gradient is delayed.
  bool sums_biases() const { return !shared() && !options_.split_backward; }
  /// Return memory of what a forward pass keeps for the backward pass, with one instance per micro-batch in flight:
  /// [rows, width] and [own_rows, width] of the activation type, bytes, and float [elems].
  Slice activation(const std::string& name, int64_t width) {
    return kept(name, bytes_of(rows() * width, options_.dtype));
  }
  Slice own_activation(const std::string& name, int64_t width) {
    return kept(name, bytes_of(own_rows() * width, options_.dtype));
  }
  Slice kept(const std::string& name, int64_t size_bytes);
  Slice statistics(const std::string& name, int64_t elems) { return kept(name, bytes_of(elems, DType::f32)); }
  /// Returns the memory of the gradient of an output. All outputs use `shared`, unless weight gradients are delayed and
  /// each output needs memory of its own.
  Slice output_gradient(const std::string& name, int64_t width, Slice shared) {
    return options_.split_backward ? activation(name, width) : shared;
  }
  /// Returns memory whose content is not needed after a layer, with one instance. Requests with the same name share it.
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
  /// Starts a piece. The following works belong to it.
  void begin(const std::string& name, int layer);
  void work(const std::string& name, Cost cost, std::vector<Slice> reads, std::vector<Slice> writes,
            const Meaning& meaning, std::function<void(LaunchContext&)> fn);
  /// Returns true if this rank adds the operand that only one of the ranks that share a layer adds.
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
  /// The works that `body` adds belong to no piece. They describe how forward works run again.
  template <typename Body>
  void replay(Body body) {
    replaying_ = true;
    body();
    replaying_ = false;
  }

  // The works. Their number of rows is that of their operands: a buffer, or a chunk of it. Weights are [out, in].
  // `weight_gradient` and related works overwrite on the first micro-batch and add afterwards.
  void linear(Slice x, const Linear& w, Slice y) override { add_linear(x, w, y, {}, false); }
  void linear_gelu(Slice x, const Linear& w, Slice pre, Slice y) override { add_linear(x, w, y, pre, false); }
  void partial_linear(Slice x, const Linear& w, Slice y) override { add_linear(x, w, y, {}, true); }
  /// With `pre_gelu`, dx is the gradient of GELU's input, which the product `before` has written.
  void linear_input_gradient(Slice dy, const Linear& w, Slice dx, Slice pre_gelu = {}, const Linear& before = {});
  void linear_weight_gradient(Slice x, Slice dy, const Linear& w);
  void norm(Slice x, Slice delta, Slice sum, const Norm& n, Slice y) override;
  /// Computes dx = (residual) + d norm(x), the gradient of what `before`, the product before a layer norm, has added to
  /// x. After the piece of the last chunk, the gradients of the norm's parameters are ready, or their shares are in
  /// flight.
  void norm_gradient(Slice dy, Slice x, const Norm& n, Slice residual, Slice dx, TokenChunk c = {},
                     const Linear& before = {});
  void head_norm(Slice raw, const HeadNorms& n, Slice qkv) override;
  /// d is the gradient of qkv and then of raw, in place. After this piece, the gradients of the weights are ready, or
  /// their shares are in flight.
  void head_norm_gradient(Slice d, Slice raw, const HeadNorms& n);
  void swiglu(Slice gate_up, Slice y, int64_t width) override;
  void swiglu_gradient(Slice dy, Slice gate_up, Slice dgate_up, int64_t width);
  // The works of a mixture of experts.
  void route(Slice x, const Router& router) override;
  /// Counts the choices of every sequence for the auxiliary loss, if there is one, on all ranks that share the
  /// sequence.
  void count_choices(const Router& router);
  /// Computes the gradient of the logits from that of the choices' weights, and adds those of the losses that balance
  /// the router. The choices were counted in a piece before this one.
  void route_gradient(const Router& router, Slice d_weights, Slice d_logits);
  void router_input_gradient(Slice d_logits, const Router& router, Slice dx);
  void router_weight_gradient(Slice x, Slice d_logits, const Router& router);
  void take_rows(Slice x, const Router& router, const ExpertRoute& route, Slice rows) override;
  /// take_rows() in an order that exists.
  void take_rows_again(Slice x, const Router& router, const ExpertRoute& route, Slice rows);
  void send_rows(Slice rows, const ExpertRoute& route, Slice arrived) override;
  /// take_rows_again() of no rows, unless one of them travels in a later round.
  void take_late_rows(Slice x, const Router& router, const ExpertRoute& route, Slice rows);
  /// send_rows() by counts that all ranks have, without weights. `name` is that of the transfer.
  void send_rows_again(const char* name, Slice rows, const ExpertRoute& route, Slice arrived);
  /// After the current piece, gathers the rows of all ranks that divide the experts, or other values of their tokens.
  void gather_tokens(const char* name, Slice own, Slice all, DType dtype);
  /// After the current piece, sums values of the tokens of all these ranks. A rank gets the sums of its own tokens.
  void sum_tokens(const char* name, Slice partial, Slice sum, DType dtype);
  void find_own_rows(const ExpertRoute& route) override;
  void expert_linear(Slice x, const ExpertLinear& w, const ExpertRoute& route, Slice y) override;
  void expert_input_gradient(Slice dy, const ExpertLinear& w, const ExpertRoute& route, Slice dx);
  void expert_weight_gradient(Slice x, Slice dy, const ExpertLinear& w, const ExpertRoute& route);
  void expert_swiglu(Slice gate_up, const ExpertRoute& route, Slice y, int64_t width) override;
  /// Also computes d_weights, the gradient of the weights of the rows.
  void expert_swiglu_gradient(Slice dy, Slice gate_up, const ExpertRoute& route, Slice dgate_up, Slice d_weights,
                              int64_t width);
  void send_back(Slice rows_of_experts, const ExpertRoute& route, Slice rows) override;
  /// Also sends a number of each row.
  void send_back(Slice rows_of_experts, Slice numbers_of_experts, const ExpertRoute& route, Slice rows, Slice numbers);
  void return_rows(Slice rows, const Router& router, const ExpertRoute& route, Slice more, Slice y) override;
  /// Also returns a number of each row to its choice.
  void return_rows(Slice rows, Slice of_rows, const Router& router, const ExpertRoute& route, Slice more, Slice y,
                   Slice of_choices);
  void rotate(Slice qkv, bool inverse) override;
  /// With context parallelism, attention() and attention_gradient() begin further pieces. The last piece stays open for
  /// later works.
  void attention(const AttentionLayer& layer, double dropout_rate, Slice qkv, Slice out, Slice lse) override;
  /// With context parallelism, adds a piece that starts sending this rank's keys to attention_gradient(). It should be
  /// called early, because the pieces between the two hide the first exchange.
  void fetch_keys(int layer, Slice qkv);
  void attention_gradient(const AttentionLayer& layer, Slice dout, Slice qkv, Slice out, Slice lse, Slice dqkv);

  /// Makes the staged batch the current one. take_batch is the first item of every plan.
  void take_batch();
  // With shares_kv(): `q` is this rank's part of the queries' weights, and `kv` has the whole weights of keys and
  // values. Returns the product of both, whose weights assemble_qkv() puts together.
  Linear joined_qkv(const Linear& q, const Linear& kv);
  void assemble_qkv(const Linear& q, const Linear& kv, const Linear& joined) override;
  /// Returns the operands of all calls of joined_qkv().
  const std::vector<std::pair<Linear, Linear>>& joins() const { return joins_; }
  /// Returns the memory of this rank's share of the gradients of `kv`.
  Slice kv_partial(const Linear& kv);
  /// After this piece, the gradient of q is ready and the share of kv's gradient is in flight. A later piece calls
  /// add_kv_partial().
  void qkv_weight_gradient(Slice x, Slice dy, const Linear& q, const Linear& kv, Slice partial);
  void add_kv_partial(const Linear& kv, Slice partial);

  void embed(uint32_t table, int64_t positions, Slice x, Slice partial) override;
  /// Adds token and output embeddings. Each rank holds some rows.
  uint32_t vocab_parameter(const std::string& name, int layer, Init init);
  /// Computes y = x + dropout(d), or y = dropout(d) without x, for the rows from `first_row` of the micro-batch on. The
  /// same work computes the gradient of d from that of y. `place` is its name in the model.
  void dropout(const std::string& place, double rate, Slice x, Slice d, Slice y, int64_t first_row);
  /// Returns the numbers of the sequences, for dropout of attention's weights at `rate`; empty at a rate of 0.
  Slice sequence_numbers(double rate) const { return rate > 0 ? sequence_numbers_ : Slice{}; }
  /// Returns the dropout of the layer's weights. Its samples are not yet known.
  kernels::AttentionDropout attention_dropout(int layer, double rate) const;
  // The head of one rank computes logits, losses and gradients of a chunk of tokens, then those of the next one in the
  // same memory.
  // Adds the pieces of training, the first of a backward pass: they compute d_hidden and the table's gradient, which is
  // complete in chunks of the vocabulary during the last chunk of tokens.
  void head(Slice hidden, uint32_t table, Slice d_hidden);
  /// Adds the last piece of an evaluation, which computes only losses.
  void evaluate_head(Slice hidden, uint32_t table);
  // The head of ranks that share the vocabulary.
  // Computes the logits of chunk c and their parts. After the last chunk the parts travel.
  void head_part(Slice hidden, uint32_t table, TokenChunk c);
  /// Adds the last pieces of the forward passes of training and of evaluation, which compute the losses.
  void shared_losses();
  void head_input_gradient(uint32_t table, Slice d_hidden, TokenChunk c);
  /// Computes the table's gradient in vocabulary chunks, with one piece each.
  void head_weight_gradient(Slice hidden, uint32_t table) { head_weight_gradient(hidden, table, {0, rows()}); }
  /// Computes the backward pass of embed.
  void embed_gradient(uint32_t table, int64_t positions, Slice dx);

  /// Returns the number of rows of a buffer whose rows have `width` activations.
  int64_t rows_of(Slice slice, int64_t width) const { return slice.size_bytes / (width * size_of(options_.dtype)); }
  /// Returns [rows, width] of scratch. Layers that use the same name one after the other share it.
  Slice scratch_rows(const std::string& name, int64_t width) {
    return scratch(name, bytes_of(rows() * width, options_.dtype));
  }

  /// Returns true if `layer` (`layers`: the head) begins another pipeline stage than the layer before it. Then the sum
  /// for its first norm is computed before the cut, so that one tensor crosses instead of two.
  bool cut_before(int64_t layer) const;
  /// Computes sum = x + delta, which is the end of a layer before a cut.
  void residual_sum(Slice x, Slice delta, Slice sum);
  /// Returns true if head and embedding share a table but are on different ranks. Then each has a copy with its own
  /// gradient.
  bool tied_apart() const { return options_.tie_embeddings && options_.ends_apart; }
  /// Returns the head's weights: the table itself, a copy of it on another stage, or separate weights under `name`.
  uint32_t head_table(uint32_t table, const std::string& name, Init init);

  /// Returns the window of a layer, or 0 if it hides no token.
  int64_t window(const AttentionLayer& layer) const {
    return layer.window < options_.chunks().tokens ? layer.window : 0;
  }
  int64_t head_dim() const { return options_.size_of_head(); }
  int64_t qkv_width() const { return (heads() + 2 * kv_heads()) * head_dim(); }
  /// Returns the shape without pointers. `kv_stride` is in elements.
  kernels::AttentionForward attention_shape(const AttentionLayer& layer, int64_t kv_stride) const;
  kernels::AttentionBackward attention_gradient_shape(const AttentionLayer& layer, int64_t kv_stride) const;
  Slice attention_workspace() const { return attention_workspace_; }
  /// Returns int32 [batch, tokens]; empty without documents.
  Slice document_begins() const { return document_begins_; }

  /// Takes the finished spec.
  ModelSpec finish(std::string description);

 private:
  void add_linear(Slice x, const Linear& w, Slice y, Slice pre_gelu, bool bias_once);
  /// Returns the bias gradient that the work which writes dy computes, or an empty slice if there is none.
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
  void copy_rows(Slice x, Slice weights, const Router& router, const ExpertRoute& route, Slice rows, Slice count = {});
  /// Counts this rank's rows of each expert. After the current piece, gathers the counts of all ranks.
  void gather_counts(const ExpertRoute& route);
  /// The choices of every sequence and expert; empty without an auxiliary loss.
  Slice load_of(const ExpertOptions& o);
  /// Moves rows between the ranks of their tokens and those of their experts, or a number of each row.
  void communicate_rows(const char* name, Slice from, Slice to, const ExpertRoute& route, bool back,
                        bool numbers = false);
  Slice weight_of(const Linear& w) const { return w.made.size_bytes > 0 ? w.made : value(w.weight); }
  /// Returns an empty slice if there is no bias.
  Slice bias_of(const Linear& w) const {
    if (w.made_bias.size_bytes > 0) return w.made_bias;
    return w.bias < 0 ? Slice{} : value(static_cast<uint32_t>(w.bias));
  }
  int64_t vocab_begin() const { return options_.tensor_index * vocab_rows(); }
  int64_t vocab_held() const;  // the rows of a table without padding
  Slice loss_parts(int rank) const;
  /// Consecutive tokens of a micro-batch, or consecutive words of the vocabulary.
  struct Rows {
    int64_t begin = 0, count = 0;
    int64_t end() const { return begin + count; }
  };
  /// Returns the groups of tokens whose logits are in memory at once. There is at least one group.
  std::vector<Rows> head_chunks() const;
  Slice rows_of_all(Slice all, Rows r) const;
  Slice logits_of(Rows r) const;
  Linear head_product(uint32_t table) const;
  /// Computes logits, losses and, in training, the gradient of the logits in their place.
  void head_losses(Slice hidden, uint32_t table, Rows r, bool training);
  void head_weight_gradient(Slice hidden, uint32_t table, Rows r);
  /// Computes the gradient of some words of the table: adds that of tokens r to that of the tokens before them.
  void table_gradient(Slice hidden, uint32_t table, Rows r, Rows words);
  void merge_losses(bool training);
  /// Adds the loss of some tokens to that of the step. Without `adds` and in the first micro-batch, sets it.
  void add_loss(bool adds);
  /// With context parallelism: return this rank's rows of the table in the order of its tokens, and add their gradient
  /// to the table's.
  Slice own_positions(Slice positions);
  void add_own_positions(Slice own, Slice gradient);
  /// Returns the positions of the tokens in their documents, as int32; empty without documents.
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
  Slice loss_parts_;  // the parts of all ranks that share the vocabulary
  Slice norm_workspace_, attention_workspace_, rotary_;
};

}  // namespace slipstream::models

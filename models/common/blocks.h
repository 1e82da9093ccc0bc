// SPDX-License-Identifier: Apache-2.0
#pragma once
// The vocabulary that models are written in: each call adds one work, with its cost and accesses, to a piece.
//
// Letters: R rows (batch x tokens), D model width, H heads, F hidden width, V vocabulary.

#include <string>
#include <utility>

#include "engine/plan/buffers.h"
#include "engine/plan/model_spec.h"
#include "models/model.h"

namespace slipstream::models {

/// Builds a ModelSpec piece by piece.
class SpecBuilder {
 public:
  SpecBuilder(const ModelOptions& options, Buffers& buffers);

  const ModelOptions& options() const { return options_; }
  int64_t rows() const { return options_.batch * options_.tokens; }
  ModelSpec& spec() { return spec_; }

  /// [rows, width] of the activation type; one instance per micro-batch in flight.
  Slice activation(const std::string& name, int64_t width);
  /// float [elems], same instances.
  Slice statistics(const std::string& name, int64_t elems);
  /// The gradient of an output: `shared` among all of them, unless weight gradients wait and so each needs its own.
  Slice output_gradient(const std::string& name, int64_t width, Slice shared);
  /// Memory whose content does not outlive a layer; one instance.
  Slice scratch(const std::string& name, int64_t size_bytes);
  Slice batch_buffer(const std::string& name, int64_t size_bytes, Instances instances);

  /// Returns the parameter's index.
  uint32_t parameter(ParameterSpec parameter);
  uint32_t parameter(const std::string& name, std::vector<int64_t> shape, int layer, Init init, bool transposed = false);
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
  void communicate(Communication communication) { spec_.pieces.back().communications.push_back(std::move(communication)); }
  uint32_t current() const { return static_cast<uint32_t>(spec_.pieces.size() - 1); }

  // Works. Weights are [out, in]. `weight_gradient` and friends overwrite on the first micro-batch and add afterwards.
  void linear(Slice x, uint32_t weight, int64_t bias, Slice y, int64_t in, int64_t out, Slice pre_gelu = {});
  void linear_input_gradient(Slice dy, uint32_t weight, Slice dx, int64_t in, int64_t out);
  void linear_weight_gradient(Slice x, Slice dy, uint32_t weight, int64_t bias, int64_t in, int64_t out);
  void gelu_gradient(Slice dy, Slice x, Slice dx, int64_t width);
  void attention(Slice qkv, Slice out, Slice lse);
  void attention_gradient(Slice dout, Slice qkv, Slice out, Slice lse, Slice dqkv);

  /// take_batch: the staged batch becomes the current one. The first item of every plan.
  void take_batch();
  /// x = table[ids] (+ positions).
  void embed(uint32_t table, int64_t positions, Slice x);
  /// Logits, losses and, when training, the gradient of the logits in their place.
  void head_losses(Slice hidden, uint32_t table, bool training);
  /// Backward of head_losses: the table's gradient in vocabulary chunks (one piece each), then d hidden.
  void head_gradient(Slice hidden, uint32_t table, Slice d_hidden, std::vector<uint32_t>& pieces);
  /// Backward of embed.
  void embed_gradient(uint32_t table, int64_t positions, Slice dx);

  /// Whether `layer` (layers: the head) is the first of another pipeline stage than the one before. Then the sum that its first norm
  /// would form is formed before the cut: one tensor crosses instead of two.
  bool cut_before(int64_t layer) const;
  /// The piece that ends `layer` when a cut follows: sum = x + delta.
  uint32_t residual_sum(int layer, Slice x, Slice delta, Slice sum);
  /// Whether head and embedding share a table but not a rank: then each has a copy, with a gradient of its own.
  bool tied_apart() const { return options_.tie_embeddings && !options_.cuts.empty(); }
  /// The head's weights: the table itself, a copy of it on another stage, or weights of its own under `name`.
  uint32_t head_table(uint32_t table, const std::string& name, Init init);

  int64_t head_dim() const { return options_.width / options_.heads; }
  int64_t qkv_width() const { return (options_.heads + 2 * options_.kv_heads) * head_dim(); }
  Slice norm_workspace() const { return norm_workspace_; }
  Slice attention_workspace() const { return attention_workspace_; }

  /// Takes the finished spec.
  ModelSpec finish(std::string description);

 private:
  Slice head_part_of(uint32_t table) const;
  /// Of a context-parallel rank: its rows of the table, in the order of its tokens; and the gradient of those added to the table's.
  Slice own_positions(Slice positions);
  void add_own_positions(Slice own, Slice gradient);

  ModelOptions options_;
  Buffers& buffers_;
  ModelSpec spec_;
  Slice ids_, targets_, batch_next_, batch_current_;
  Slice logits_, row_losses_, loss_part_, loss_;
  Slice norm_workspace_, attention_workspace_;
};

}  // namespace slipstream::models

// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a layer is: parameters, activations, and the stages of its forward and backward pass. A layer lies between a
// norm and a residual sum: attention, or an MLP. The frame (decoder.h) puts the stages of all layers in order.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/common/blocks.h"

namespace slipstream::models {

/// A step of a backward pass: the gradient of a product's weights, and that of its input. Both follow from the gradient
/// of its output, which the step before has made.
struct GradientStep {
  const char* piece = nullptr;  // of the weights' gradient; null: there is none
  std::function<void()> weights = {};
  Stage input = {};  // without a body: there is none
};

/// The layer of one index, with its parameters. Borrows the builder.
class Layer {
 public:
  virtual ~Layer() = default;

  /// Declares the activations that the forward pass keeps for the backward pass.
  virtual void declare_activations() = 0;
  /// Declares the gradients that the backward pass makes.
  virtual void declare_gradients() = 0;
  /// y = layer(x), in words of `ops`, which outlive the stages. x and y are buffers of all rows [rows, D].
  virtual std::vector<Stage> forward(Ops& ops, const DropoutRates& dropout, Slice x, Slice y) const = 0;
  /// dx from dy, in steps from the output to the input. `x` is used by gradients of weights alone.
  virtual std::vector<GradientStep> backward(Slice x, Slice dy, Slice dx) const = 0;
  /// Adds pieces that begin what backward() needs from other ranks. The frame calls it some pieces before.
  virtual void fetch() const {}
  /// Adds pieces that complete gradients of weights whose sums over ranks have been on their way since backward().
  virtual void complete_gradients() const {}
  /// The product that writes y; null if another work does.
  virtual Linear* last_product() { return nullptr; }
};

/// A kind of layer: an entry of a family's table.
struct LayerKind {
  std::string name;  // of the place in a block: "attention", "mlp"
  std::string form;  // in docs/reference/models.md
  /// Declares the parameters, whose names begin with `prefix`.
  std::function<std::unique_ptr<Layer>(SpecBuilder& builder, const std::string& prefix, int layer)> declare;
};

struct NormKind {
  std::string name;
  bool centred = false;  // a layer norm, with a bias; otherwise an RMS norm
};
Norm declare_norm(SpecBuilder& builder, const std::string& prefix, int layer, const NormKind& kind);

/// The weights of a product by their names in a Hugging Face folder, without ".weight" and ".bias".
struct Weights {
  std::vector<std::string> names;  // of parts side by side in one parameter; one name: one tensor for all
  bool bias = false;
  bool transposed = false;  // stored as [in, out]
  Init init = {Init::Kind::normal, 0.02f};
};
/// Outputs of a product, side by side: of these sizes, under one name or one each. A rank holds its share of each part,
/// or `whole` parts.
struct Outputs {
  std::vector<std::string> names;
  std::vector<int64_t> sizes;
  bool whole = false;
};
/// Products of one input that split their outputs over the ranks: the weights of all, then their biases.
std::vector<Linear> declare_split_outputs(SpecBuilder& builder, const std::string& prefix, int layer,
                                          const Weights& weights, int64_t in, const std::vector<Outputs>& products);
/// A product that splits its input over the ranks, whose outputs they sum.
Linear declare_split_input(SpecBuilder& builder, const std::string& prefix, int layer, const Weights& weights,
                           int64_t in, int64_t out);

// --- the kinds of layers

/// Causal attention of heads with grouped key-value heads.
struct AttentionKind {
  Weights qkv;  // one name for all, or the names of q, k and v
  Weights out;
  std::vector<std::string> head_norms = {};  // RMS norms of the heads of q and k, before they are rotated
  int64_t window = 0;                        // as AttentionLayer::window
  bool rotary = false;                       // rotary positions (half-split)
};
LayerKind attention(AttentionKind kind);

/// D -> F -> D, with GELU (tanh), or with SwiGLU, whose first product computes gate and up side by side.
struct MlpKind {
  Weights up;  // with SwiGLU: gate, then up
  Weights down;
};
LayerKind gelu_mlp(MlpKind kind);
LayerKind swiglu_mlp(MlpKind kind);

}  // namespace slipstream::models

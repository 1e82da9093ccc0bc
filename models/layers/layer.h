// SPDX-License-Identifier: Apache-2.0
#pragma once
// A layer: its parameters, its activations, and the stages of its forward and backward pass. A layer, such as attention
// or an MLP, lies between a norm and a residual sum. The frame (decoder.h) puts the stages of all layers in order.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/common/blocks.h"

namespace slipstream::models {

/// A step of a backward pass: the gradient of a product's weights, and that of its input. Both follow from the gradient
/// of the product's output, which the previous step has computed.
struct GradientStep {
  const char* piece = nullptr;  // the piece of the weights' gradient; null: there is none
  std::function<void()> weights = {};
  Stage input = {};  // without a body: there is none
};

/// A layer with its index and its parameters. Borrows the builder.
class Layer {
 public:
  virtual ~Layer() = default;

  /// Declares the activations that the forward pass keeps for the backward pass.
  virtual void declare_activations() = 0;
  /// Declares the gradients that the backward pass makes.
  virtual void declare_gradients() = 0;
  /// Computes y = layer(x) as calls of `ops`, which must outlive the stages. x and y are buffers of all rows [rows, D].
  virtual std::vector<Stage> forward(Ops& ops, const DropoutRates& dropout, Slice x, Slice y) const = 0;
  /// Computes dx from dy, in steps from the output to the input. Only gradients of weights use `x`.
  virtual std::vector<GradientStep> backward(Slice x, Slice dy, Slice dx) const = 0;
  /// Adds pieces that begin to fetch what backward() needs from other ranks. The frame calls this some pieces earlier.
  virtual void fetch() const {}
  /// Adds pieces that complete gradients of weights whose sums over ranks have been in flight since backward().
  virtual void complete_gradients() const {}
  /// Returns the product that writes y, or null if another work writes it.
  virtual Linear* last_product() { return nullptr; }
};

/// A kind of layer, which is an entry of a family's table.
struct LayerKind {
  std::string name;  // the name of the position in a block: "attention", "mlp"
  std::string form;  // as docs/reference/models.md describes it
  /// Declares the parameters, whose names begin with `prefix`.
  std::function<std::unique_ptr<Layer>(SpecBuilder& builder, const std::string& prefix, int layer)> declare;
};

struct NormKind {
  std::string name;
  bool centred = false;  // true: a layer norm with a bias; false: an RMS norm
};
Norm declare_norm(SpecBuilder& builder, const std::string& prefix, int layer, const NormKind& kind);

/// The weights of a product by their names in a Hugging Face folder, without ".weight" and ".bias".
struct Weights {
  /// The parts that are next to each other in one parameter; one name: one tensor has all parts.
  std::vector<std::string> names;
  bool bias = false;
  bool transposed = false;  // stored as [in, out]
  Init init = {Init::Kind::normal, 0.02f};
};
/// The outputs of a product next to each other, with these sizes, under one name or under one name each. A rank holds
/// its share of each part, or `whole` parts.
struct Outputs {
  std::vector<std::string> names;
  std::vector<int64_t> sizes;
  bool whole = false;
};
/// Declares products of one input that split their outputs over the ranks: first the weights of all, then their biases.
std::vector<Linear> declare_split_outputs(SpecBuilder& builder, const std::string& prefix, int layer,
                                          const Weights& weights, int64_t in, const std::vector<Outputs>& products);
/// Declares a product that splits its input over the ranks, which sum its outputs.
Linear declare_split_input(SpecBuilder& builder, const std::string& prefix, int layer, const Weights& weights,
                           int64_t in, int64_t out);

// --- the kinds of layers

/// Causal attention of heads with grouped key-value heads.
struct AttentionKind {
  Weights qkv;  // one name for all, or the names of q, k and v
  Weights out;
  std::vector<std::string> head_norms = {};  // RMS norms of the heads of q and k, before they are rotated
  int64_t window = 0;                        // see AttentionLayer::window
  bool rotary = false;                       // rotary positions (half-split)
};
LayerKind attention(AttentionKind kind);

/// D -> F -> D with GELU (tanh), or with SwiGLU, whose first product computes gate and up next to each other.
struct MlpKind {
  Weights up;  // with SwiGLU: gate, then up
  Weights down;
};
LayerKind gelu_mlp(MlpKind kind);
LayerKind swiglu_mlp(MlpKind kind);

/// A mixture of SwiGLU experts. A router sends each token to some of them, and their outputs are added with weights.
/// Shared experts, which are one SwiGLU network, compute every token.
/// The names are those of a Hugging Face folder, without ".weight". Expert e is "experts.e.".
struct ExpertsKind {
  std::string router;  // "mlp.gate"
  std::string prefix;  // "mlp.experts."
  std::string gate, up, down;
  std::string shared = {};  // "mlp.shared_experts."; begins the names of shared experts, if the family has any
};
LayerKind experts(ExpertsKind kind);

}  // namespace slipstream::models

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The frame of every decoder: sublayers, each a norm of the residual and a layer whose output is added to the residual.
// A block has two: a mixer (attention), and an MLP.
//
// A family is a table: the kinds of sublayers of every block, and names. Letters as in blocks.h.

#include <memory>
#include <string>
#include <vector>

#include "models/layers/layer.h"

namespace slipstream::models {

struct SublayerKind {
  NormKind norm;
  LayerKind layer;
};
struct BlockKind {
  SublayerKind mixer, mlp;
};

/// A family with the sizes of a model.
struct Architecture {
  std::string description;  // "gpt2, 12 layers, 12 heads, ..."
  std::string table, positions,
      head;            // names of the token table, of learned positions (or empty) and of an untied head
  std::string prefix;  // of the names of block l, followed by "l."
  std::vector<BlockKind> blocks;
  NormKind final_norm;
};

/// The family's architecture with these sizes. Pure. Throws: ConfigError if it cannot have them.
Architecture architecture_of(const ModelOptions& options);

/// Adds the model's buffers to `buffers` and returns its spec.
ModelSpec build_decoder(const Architecture& family, const ModelOptions& options, Buffers& buffers);

/// Gradient of the residual between two blocks.
struct ResidualGradient {
  Slice all;      // rows of all tokens
  Slice crosses;  // sent to the previous stage at a cut here; the rank's own rows
};

/// A norm of the residual x, and the layer after it. The final norm has none.
struct Sublayer {
  int block = 0;                // its index
  bool first = false;           // of its block
  std::string name, norm_name;  // "attention", "norm_1"
  Norm norm;
  std::unique_ptr<Layer> layer;
  Slice x, normed;       // activations
  ResidualGradient d_x;  // the gradient of x
  Slice d_y;             // the gradient of the layer's output; without dropout that of the next x

  /// The layer's name for dropout.
  std::string place() const { return fmt::format("layer{}.{}", block, name); }
};

/// A declared model, and its forward pass. Borrows the builder.
class Decoder {
 public:
  /// Declares parameters and activations.
  Decoder(const Architecture& family, SpecBuilder& builder);

  /// The stages from the tokens to the output of the final norm, in words of `ops`, which outlive them. Borrows this.
  std::vector<Stage> forward(Ops& ops, const DropoutRates& dropout);

  uint32_t table = 0, head = 0;
  int64_t positions = -1;           // -1: none
  std::vector<Sublayer> sublayers;  // the last is the final norm

  /// Does another pipeline stage begin with this sublayer?
  bool is_after_cut(const Sublayer& s) const { return s.first && b_.cut_before(s.block); }
  /// The input of the head; empty if ranks share the tokens of norms.
  Slice hidden() const { return sublayers.back().normed; }
  /// The input of products after a norm.
  Slice seen(Slice normed) const { return b_.own_tokens() ? gathered_ : normed; }
  Norm chunk_of(const Norm& n, TokenChunk c) const {
    return {n.weight, n.bias, b_.chunk(n.mean, c), b_.chunk(n.inv_std, c), n.partial};
  }

 private:
  void declare_activations(Sublayer& s);

  SpecBuilder& b_;
  const ModelOptions& o_;
  Slice embedded_, delta_, gathered_;  // of all tokens: a layer's output; a norm's output as the input of products
};

}  // namespace slipstream::models

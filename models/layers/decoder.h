// SPDX-License-Identifier: Apache-2.0
#pragma once
// The frame of every decoder. It consists of sublayers, each a norm of the residual and a layer whose output is added
// to the residual. A block has two sublayers: a mixer (attention) and an MLP.
//
// A family is a table of names and of the kinds of sublayers in every block. The letters are those of blocks.h.

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
  std::string prefix;  // begins the names of block l, before "l."
  std::vector<BlockKind> blocks;
  NormKind final_norm;
};

/// Returns the family's architecture with these sizes. Pure. Throws: ConfigError if the family cannot have them.
Architecture architecture_of(const ModelOptions& options);

/// Adds the model's buffers to `buffers` and returns its spec.
ModelSpec build_decoder(const Architecture& family, const ModelOptions& options, Buffers& buffers);

/// The gradient of the residual between two blocks.
struct ResidualGradient {
  Slice all;      // the rows of all tokens
  Slice crosses;  // sent to the previous stage at a cut here; has the rank's own rows
};

/// A norm of the residual x, and the layer after it. The final norm has no layer.
struct Sublayer {
  int block = 0;                // the index of its block
  bool first = false;           // it is the first of its block
  std::string name, norm_name;  // "attention", "norm_1"
  Norm norm;
  std::unique_ptr<Layer> layer;
  Slice x, normed;       // activations
  ResidualGradient d_x;  // the gradient of x
  Slice d_y;             // the gradient of the layer's output; without dropout, that of the next x

  /// Returns the layer's name for dropout.
  std::string place() const { return fmt::format("layer{}.{}", block, name); }
};

/// A declared model and its forward pass. Borrows the builder.
class Decoder {
 public:
  /// Declares parameters and activations.
  Decoder(const Architecture& family, SpecBuilder& builder);

  /// Returns the stages from the tokens to the output of the final norm, as calls of `ops`, which must outlive them.
  /// The stages borrow this object.
  std::vector<Stage> forward(Ops& ops, const DropoutRates& dropout);

  uint32_t table = 0, head = 0;
  int64_t positions = -1;           // -1: none
  std::vector<Sublayer> sublayers;  // the last one is the final norm

  /// Returns true if another pipeline stage begins with this sublayer.
  bool is_after_cut(const Sublayer& s) const { return s.first && b_.cut_before(s.block); }
  /// Returns the input of the head; empty if ranks share the tokens of norms.
  Slice hidden() const { return sublayers.back().normed; }
  /// Returns the input of products after a norm.
  Slice seen(Slice normed) const { return b_.own_tokens() ? gathered_ : normed; }
  Norm chunk_of(const Norm& n, TokenChunk c) const {
    return {n.weight, n.bias, b_.chunk(n.mean, c), b_.chunk(n.inv_std, c), n.partial};
  }

 private:
  void declare_activations(Sublayer& s);

  SpecBuilder& b_;
  const ModelOptions& o_;
  /// For all tokens: a layer's output (delta_), and a norm's output as the input of products (gathered_).
  Slice embedded_, delta_, gathered_;
};

}  // namespace slipstream::models

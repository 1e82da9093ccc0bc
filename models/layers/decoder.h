// SPDX-License-Identifier: Apache-2.0
#pragma once
// The frame of every decoder: blocks of a mixer (attention) and an MLP, each after a norm and before a residual sum.
//
// A family is a table: the kinds of layers of every block, and names. Letters as in blocks.h.

#include <memory>
#include <string>
#include <vector>

#include "models/layers/layer.h"

namespace slipstream::models {

/// The layers of one index.
struct BlockKind {
  NormKind norm_1;
  LayerKind mixer;
  NormKind norm_2;
  LayerKind mlp;
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

struct Block {
  Norm norm_1;
  std::unique_ptr<Layer> mixer;
  Norm norm_2;
  std::unique_ptr<Layer> mlp;
  Slice residual_in, normed_1, residual_mid, normed_2;  // activations
  ResidualGradient d_in, d_out;
  Slice d_mid;           // gradient of residual_mid
  Slice d_mixer, d_mlp;  // of the outputs of both layers; without dropout d_mid and d_out
};

/// A declared model, and its forward pass. Borrows the builder.
class Decoder {
 public:
  /// Declares parameters and activations.
  Decoder(const Architecture& family, SpecBuilder& builder);

  /// The stages from the tokens to `hidden`, in words of `ops`, which outlive them. Borrows this.
  std::vector<Stage> forward(Ops& ops, const DropoutRates& dropout);

  uint32_t table = 0, head = 0;
  int64_t positions = -1;  // -1: none
  std::vector<Block> blocks;
  Norm final_norm;
  Slice embedded, residual_out;
  Slice hidden;  // the input of the head; empty if ranks share the tokens of norms

  int end() const { return static_cast<int>(o_.layers); }
  /// The names of both layers of a block for dropout.
  static std::string mixer_place(int64_t l) { return fmt::format("layer{}.attention", l); }
  static std::string mlp_place(int64_t l) { return fmt::format("layer{}.mlp", l); }
  /// The input of products after a norm.
  Slice seen(Slice normed) const { return b_.own_tokens() ? gathered_ : normed; }
  Norm chunk_of(const Norm& n, TokenChunk c) const {
    return {n.weight, n.bias, b_.chunk(n.mean, c), b_.chunk(n.inv_std, c), n.partial};
  }

 private:
  void declare_activations(int l);
  Norm with_memory(Norm n, const std::string& name);
  Slice residual(const std::string& name);
  Slice normed(const std::string& name);
  /// The input of a norm: x, or the sum of x and the output `delta` of a layer (all rows), which is stored.
  struct Sum {
    Slice x, delta = {}, sum = {};
    std::string place = {};  // of the layer, for dropout
    double rate = 0;
  };
  Stage norm_stage(Ops& ops, const char* piece, const char* part, int l, const Norm& n, const Sum& of, Slice normed);
  Stage sum_stage(int l, const Sum& of);

  SpecBuilder& b_;
  const ModelOptions& o_;
  Slice delta_, gathered_;  // of all tokens: a layer's output; a norm's output as the input of products
};

}  // namespace slipstream::models

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The frame of every decoder: blocks of attention and an MLP, each after a norm, forward and backward, on one rank or
// shared by several.
//
// A family defines the parameters of a block, their order and names, and which of the variants below it uses; the rest
// is here. Letters as in blocks.h.

#include <functional>
#include <string>

#include "models/common/blocks.h"

namespace slipstream::models {

/// The parameters of one block; this rank's part of them.
struct BlockParameters {
  Norm norm_1;
  HeadNorms head_norms;  // of some families
  Linear qkv, out;       // D -> q, k and v side by side; attention's output -> D
  Linear kv = {};        // with SpecBuilder::shares_kv(): D -> all k and v; then qkv is D -> q
  Norm norm_2;
  Linear up, down;  // D -> F (gate and up side by side: 2 F) -> D
};

/// The differences between families.
struct Architecture {
  std::string description;  // "gpt2, 12 layers, 12 heads, ..."
  bool gated = false;       // SwiGLU of gate and up, otherwise GELU (tanh)
  bool rotary = false;      // otherwise learned positions
  std::string table, positions,
      head;  // names of the token table, the learned positions and an untied head
  std::function<BlockParameters(SpecBuilder&, int layer)> block;  // declares them
  std::function<Norm(SpecBuilder&)> final_norm;                   // declares its parameters
};

/// The family's architecture with these sizes. Pure. Throws: ConfigError if it cannot have them.
Architecture architecture_of(const ModelOptions& options);

/// Adds the model's buffers to `buffers` and returns its spec.
ModelSpec build_decoder(const Architecture& family, const ModelOptions& options, Buffers& buffers);

}  // namespace slipstream::models

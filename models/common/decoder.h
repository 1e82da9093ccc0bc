// SPDX-License-Identifier: Apache-2.0
#pragma once
// The frame of every decoder: blocks of attention and an MLP with a norm in front of each, forward and backward, on one
// rank or shared by several.
//
// A family says which parameters a block has, in which order and under which names, and which of the variants below it
// uses; all the rest is here. Letters as in blocks.h.

#include <functional>
#include <string>

#include "models/common/blocks.h"

namespace slipstream::models {

/// The parameters of one block, as this rank holds them.
struct BlockParameters {
  Norm norm_1;
  Linear qkv, out;  // D -> q, k and v side by side; attention's output -> D
  Norm norm_2;
  Linear up, down;  // D -> F (gate and up side by side: 2 F) -> D
};

/// What tells one family from another.
struct Architecture {
  std::string description;  // "gpt2, 12 layers, 12 heads, ..."
  bool gated = false;       // SwiGLU of gate and up, else GELU (tanh)
  bool rotary = false;      // else learned positions
  std::string table, positions,
      head;  // names of the token table, of the learned positions, and of a head that is not tied to the table
  std::function<BlockParameters(SpecBuilder&, int layer)> block;  // declares them
  std::function<Norm(SpecBuilder&)> final_norm;                   // declares its parameters
};

/// Adds the model's buffers to `buffers` and returns its spec.
ModelSpec build_decoder(const Architecture& family, const ModelOptions& options, Buffers& buffers);

}  // namespace slipstream::models

// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model of no family, whose layers differ.

#include "models/layers/decoder.h"

namespace slipstream::tests {

/// Llama whose odd layers have layer norms, biases, norms of heads in place of rotary positions, and GELU. So a layer
/// norm follows SwiGLU, an RMS norm follows GELU, and neighbours use memory of different sizes in turn.
inline models::Architecture mixed_layers(const models::ModelOptions& options) {
  models::ModelOptions llama = options;
  llama.table = nullptr;
  models::Architecture mixed = models::architecture_of(llama);
  for (size_t l = 1; l < mixed.blocks.size(); l += 2)
    mixed.blocks[l] = {{{"input_layernorm", true},
                        models::attention({.qkv = {{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, true},
                                           .out = {{"self_attn.o_proj"}, true},
                                           .head_norms = {"self_attn.q_norm", "self_attn.k_norm"}})},
                       {{"post_attention_layernorm", true},
                        models::gelu_mlp({.up = {{"mlp.up_proj"}, true}, .down = {{"mlp.down_proj"}, true}})}};
  return mixed;
}

}  // namespace slipstream::tests

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Llama and its relatives: rotary positions (half-split), RMSNorm, SwiGLU, grouped key-value heads, tied or untied
// head.

#include "models/common/decoder.h"

namespace slipstream::models {

/// The differences of a family from Llama.
struct LlamaVariant {
  const char* name;         // in the description
  bool qkv_bias = false;    // biases of queries, keys and values
  bool head_norms = false;  // RMS norms of query and key heads, before they are rotated
  bool window = false;      // tokens may attend to the last ModelOptions::window tokens only
};

/// See architecture_of. Throws ConfigError if the head size is odd, kv_heads does not divide heads, or the options have
/// a window that the variant lacks.
Architecture llama_variant(const LlamaVariant& variant, const ModelOptions& options);

}  // namespace slipstream::models

// SPDX-License-Identifier: Apache-2.0
// Qwen2 and Qwen3 as variants of Llama.

#include "models/qwen/qwen.h"

#include "models/common/llama_variant.h"

namespace slipstream::models {

Architecture qwen2(const ModelOptions& options) {
  return llama_variant({.name = "qwen2", .qkv_bias = true, .window = true}, options);
}

Architecture qwen3(const ModelOptions& options) {
  return llama_variant({.name = "qwen3", .head_norms = true, .window = true}, options);
}

}  // namespace slipstream::models

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The model families as tables of layers.

#include "models/layers/decoder.h"

namespace slipstream::models {

/// See architecture_of. Throws ConfigError if kv_heads differs from heads.
Architecture gpt2(const ModelOptions& options);
/// See architecture_of. Throw ConfigError if the head size is odd, kv_heads does not divide heads, or the options have
/// a window that the family lacks.
Architecture llama(const ModelOptions& options);
Architecture mistral(const ModelOptions& options);
Architecture qwen2(const ModelOptions& options);
Architecture qwen3(const ModelOptions& options);

}  // namespace slipstream::models

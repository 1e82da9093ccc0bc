// SPDX-License-Identifier: Apache-2.0
#pragma once
// GPT-2: learned positions, LayerNorm, GELU, tied or untied head.
// Source: Radford et al. 2019, "Language models are unsupervised multitask learners".

#include "models/common/decoder.h"

namespace slipstream::models {

/// See architecture_of. Throws ConfigError if kv_heads differs from heads.
Architecture gpt2(const ModelOptions& options);

}  // namespace slipstream::models

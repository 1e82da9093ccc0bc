// SPDX-License-Identifier: Apache-2.0
#pragma once
// GPT-2: learned positions, LayerNorm, GELU, tied or untied head.
// Source: Radford et al. 2019, "Language models are unsupervised multitask learners".

#include "models/model.h"

namespace slipstream::models {

/// See build_model. Throws ConfigError if kv_heads differs from heads.
ModelSpec build_gpt2(const ModelOptions& options, Buffers& buffers);

}  // namespace slipstream::models

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Llama: rotary positions (half-split), RMSNorm, SwiGLU, grouped key-value heads, no biases, tied or untied head.
// Source: Touvron et al. 2023, arXiv:2307.09288; Ainslie et al. 2023, arXiv:2305.13245 (grouped queries).

#include "models/model.h"

namespace slipstream::models {

/// See build_model. Throws ConfigError if the head size is odd or kv_heads does not divide heads.
ModelSpec build_llama(const ModelOptions& options, Buffers& buffers);

}  // namespace slipstream::models

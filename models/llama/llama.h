// SPDX-License-Identifier: Apache-2.0
#pragma once
// Llama 2 to 3.2: no biases; RoPE scaling "llama3" for long sequences.
// Source: Touvron et al. 2023, arXiv:2307.09288; Ainslie et al. 2023, arXiv:2305.13245 (grouped queries); Dubey et al.
// 2024, arXiv:2407.21783.

#include "models/common/decoder.h"

namespace slipstream::models {

/// See llama_variant().
Architecture llama(const ModelOptions& options);

}  // namespace slipstream::models

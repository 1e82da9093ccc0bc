// SPDX-License-Identifier: Apache-2.0
#pragma once
// Qwen2 and Qwen2.5: Llama with biases of queries, keys and values. Qwen3: Llama with norms of query and key heads.
// Source: Yang et al. 2024, arXiv:2407.10671; Yang et al. 2025, arXiv:2505.09388.

#include "models/common/decoder.h"

namespace slipstream::models {

/// See llama_variant().
Architecture qwen2(const ModelOptions& options);
Architecture qwen3(const ModelOptions& options);

}  // namespace slipstream::models

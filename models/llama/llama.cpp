// SPDX-License-Identifier: Apache-2.0
// Llama without additions.

#include "models/llama/llama.h"

#include "models/common/llama_variant.h"

namespace slipstream::models {

Architecture llama(const ModelOptions& options) { return llama_variant({.name = "llama"}, options); }

}  // namespace slipstream::models

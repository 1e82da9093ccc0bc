// SPDX-License-Identifier: Apache-2.0
// Mistral as a variant of Llama.

#include "models/mistral/mistral.h"

#include "models/common/llama_variant.h"

namespace slipstream::models {

Architecture mistral(const ModelOptions& options) {
  return llama_variant({.name = "mistral", .window = true}, options);
}

}  // namespace slipstream::models

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Mistral: Llama whose tokens may attend to a sliding window.
// Source: Jiang et al. 2023, arXiv:2310.06825.

#include "models/common/decoder.h"

namespace slipstream::models {

/// See llama_variant().
Architecture mistral(const ModelOptions& options);

}  // namespace slipstream::models

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks the sizes of a model, and their division among tensor ranks.

#include "engine/config/config.h"

namespace slipstream {

/// The most elements of a head that the kernels of attention hold.
inline constexpr int64_t kHeadDimMost = 256;

/// Pure. Throws: ConfigError for sizes that fit no model of the family. The defaults must be resolved.
void validate_model(const Model& model);

/// Pure. Throws: ConfigError if parallel.tensor ranks cannot share the model or the tokens of a micro-batch equally.
void validate_tensor(const RunConfig& config);

}  // namespace slipstream

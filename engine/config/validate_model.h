// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks the sizes of a model, and their division among tensor ranks.

#include "engine/config/config.h"

namespace slipstream {

/// Pure. Throws: ConfigError for sizes that fit no model of the family. Defaults must be resolved.
void validate_model(const Model& model);

/// Pure. Throws: ConfigError if parallel.tensor ranks cannot share the model or the tokens of a micro-batch equally.
void validate_tensor(const RunConfig& config);

}  // namespace slipstream

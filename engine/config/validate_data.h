// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks the table [data] as a whole.

#include "engine/config/config.h"

namespace slipstream {

/// Pure. Throws: ConfigError.
void validate_data(const RunConfig& config);

}  // namespace slipstream

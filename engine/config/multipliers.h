// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rows of optimizer.multipliers.

#include <string>
#include <vector>

#include "engine/base/update_multipliers.h"

namespace slipstream {

/// Parses rows "PATTERN learning_rate=X weight_decay=Y". Pure. Throws: ConfigError that names the wrong row.
std::vector<UpdateMultipliers> parse_multipliers(const std::vector<std::string>& rows);

}  // namespace slipstream

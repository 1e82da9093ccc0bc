// SPDX-License-Identifier: Apache-2.0
#pragma once
// slipstream plan --from: rehearses another plan with the computing times that a run measured.

#include <string>

#include "trainer/planner/forecast/planned.h"

namespace slipstream::cli {

/// Blocks. Plans `request` for the configuration of the run in `folder`, with the mean time of every item in the run's
/// trace. Prints the rehearsed step beside the measured one, and a replay of the same run. `request.ranks` 0: the ranks
/// of the run.
/// Throws: DataError if the folder is incomplete or of another version; ConfigError, PlanError.
int plan_from(const std::string& folder, planner::PlanRequest request, bool json);

}  // namespace slipstream::cli

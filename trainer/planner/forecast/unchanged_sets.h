// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds arguments of --set that leave the plan as it is.

#include <string>
#include <vector>

#include "engine/config/load.h"
#include "trainer/planner/finished_job.h"
#include "trainer/planner/options/job_request.h"

namespace slipstream::planner {

/// Returns a sentence with the reason for each key of a `--set` that is meant to change the plan and does not: the
/// training plan without its last `--set` is the same. Leaves out keys that change more than the plan, and plans that
/// take seconds. Reads files. Blocks.
std::vector<std::string> sets_without_effect(const RunSource& source, const JobRequest& request,
                                             const FinishedJob& finished);

}  // namespace slipstream::planner

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Arguments of --set that leave the plan as it is.

#include <string>
#include <vector>

#include "engine/config/load.h"
#include "trainer/planner/finished_job.h"
#include "trainer/planner/options/job_request.h"

namespace slipstream::planner {

/// A sentence with the reason for each key of a `--set` that is meant to change the plan and does not: the training
/// plan without its last `--set` is the same. Keys that change more than the plan are left out, and so are plans that
/// take seconds. Reads files, blocks.
std::vector<std::string> sets_without_effect(const RunSource& source, const JobRequest& request,
                                             const FinishedJob& finished);

}  // namespace slipstream::planner

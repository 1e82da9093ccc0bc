// SPDX-License-Identifier: Apache-2.0
#pragma once
// Orders and proves the plans of all stages of a job.

#include <memory>
#include <vector>

#include "comm/rehearse/finish.h"
#include "engine/plan/job.h"

namespace slipstream::planner {

/// Orders the plans of all stages of one job, once. With `proves`, also proves the sequences of Job::calendar(); the
/// proof may fail. Throws: PlanError.
comm::Proof finish_plans(const std::vector<std::shared_ptr<Job>>& stages, const comm::Price& price, bool proves = true);

/// Throws: PlanError with the findings of a failed proof.
void require_holds(const comm::Proof& proof);

}  // namespace slipstream::planner

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Refuses to start a run on which ranks disagree.

#include <string>

#include "trainer/planner/finished_job.h"
#include "trainer/runtime/rank/world.h"

namespace slipstream::runtime {

/// Blocks. Collective. Throws: AgreedFailure (code 2) with the first line in which a rank's `value` differs from rank
/// 0's. `what` names the value.
void require_same(World& world, const std::string& what, const std::string& value,
                  const std::string& remedy = "Start all ranks with the same run file, flags and build.");

/// Blocks. Collective. Throws: AgreedFailure (code 2) with the first task in which a rank's plans differ from rank 0's.
void require_same_plan(World& world, const planner::FinishedJob& finished);

}  // namespace slipstream::runtime

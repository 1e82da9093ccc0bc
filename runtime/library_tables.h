// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a run reads of NCCL and cuBLASLt besides its run file: tables, and variables of the environment, the same for
// all ranks.

#include <string>
#include <vector>

#include "engine/config/config.h"
#include "engine/plan/job.h"
#include "runtime/device_assignment.h"
#include "runtime/world.h"

namespace slipstream::runtime {

/// Blocks. Collective. Rank 0's tables are everybody's: what they say is part of the plan. Fills what `place` says of
/// them, and from then on products take what the table says. A table of device.algorithms = "auto" that not every card
/// takes is left alone on all ranks, with a warning.
/// Throws: AgreedFailure (code 2): a table that is broken; a rank that finds another file under the name in the run
/// file than rank 0, or whose card or library cannot take rank 0's; NCCL's variables that differ between ranks.
void read_tables(World& world, const RunConfig& config, DeviceAssignment& assignment);

}  // namespace slipstream::runtime

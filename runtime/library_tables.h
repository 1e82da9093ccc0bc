// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tables and environment variables of NCCL and cuBLASLt, equal on all ranks.

#include <string>
#include <vector>

#include "engine/config/config.h"
#include "engine/plan/job.h"
#include "runtime/device_assignment.h"
#include "runtime/world.h"

namespace slipstream::runtime {

/// Blocks. Collective. All ranks use rank 0's tables, because the plan depends on them. Fills the table fields of
/// `place`; afterwards, products use the table. If a GPU cannot use the table of device.algorithms = "auto", no rank
/// uses it, and a warning is printed.
/// Throws: AgreedFailure (code 2): a broken table; a rank with a different file than rank 0 under the run file's path,
/// or with a GPU or library that cannot use rank 0's table; NCCL variables that differ between ranks.
void read_tables(World& world, const RunConfig& config, DeviceAssignment& assignment);

}  // namespace slipstream::runtime

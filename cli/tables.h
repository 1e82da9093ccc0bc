// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a run reads of NCCL and cuBLASLt besides its run file: tables, and variables of the environment, the same for
// all ranks.

#include <string>
#include <vector>

#include "cli/place.h"
#include "cli/world.h"
#include "engine/config/config.h"
#include "engine/plan/job.h"

namespace slipstream::cli {

/// Blocks. Collective. Rank 0's tables are everybody's: what they say is part of the plan. Fills what `place` says of
/// them, and from then on products take what the table says. A table of device.algorithms = "auto" that not every card
/// takes is left alone on all ranks, with a warning.
/// Throws: AgreedFailure (code 2): a table that is broken; a rank that finds another file under the name in the run
/// file than rank 0, or whose card or library cannot take rank 0's; NCCL's variables that differ between ranks.
void read_tables(World& world, const RunConfig& config, Place& place);

/// A table by name and content, "nccl.json (xxh3 0123...)"; empty of "". Blocks. Throws: ConfigError.
std::string nccl_table_name(const std::string& path);

/// What comm.nccl says of the connections of `job`, one line each as "reduce: 2 to 4 blocks; all_reduce up to 1.0 MiB
/// tree ll"; none without a table. Pure.
std::vector<std::string> nccl_choices(const Job& job, const comm::NcclTable& table);

}  // namespace slipstream::cli

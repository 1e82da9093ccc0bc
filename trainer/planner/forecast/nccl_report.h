// SPDX-License-Identifier: Apache-2.0
#pragma once
// Prints the choices of the comm.nccl table for the connections of a job.

#include <string>
#include <vector>

#include "comm/nccl/nccl_table.h"
#include "engine/plan/job.h"

namespace slipstream::planner {

/// Returns a table's name and content, "nccl.json (xxh3 0123...)", or an empty text for "". Blocks. Throws:
/// ConfigError.
std::string nccl_table_name(const std::string& path);

/// Returns the choices of comm.nccl for the connections of `job`, one line each, such as "reduce: 2 to 4 blocks;
/// all_reduce up to 1.0 MiB tree ll"; none without a table. Pure.
std::vector<std::string> nccl_choices(const Job& job, const comm::NcclTable& table);

}  // namespace slipstream::planner

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The inputs of NCCL and cuBLASLt besides the run file: tables and environment variables, which are the same on all
// ranks.

#include <string>

#include "engine/config/config.h"
#include "trainer/runtime/rank/world.h"

namespace slipstream::runtime {

struct LibraryTables {
  comm::NcclTable nccl;    // rank 0's table of comm.nccl
  std::string nccl_hash;   // XXH3-128 of the table's text; empty: no table
  std::string algorithms;  // the path of the table of timed products that rank 0 has read; empty: none
  std::string algorithms_hash;
  size_t timed_products = 0;
};

/// Blocks. Collective. All ranks take rank 0's tables, which are part of the plan. From then on, products use the
/// algorithms of the table. If device.algorithms is "auto" and one GPU refuses the table, no rank uses it, and a
/// warning names the reason.
/// Throws: AgreedFailure (code 2) if a table is broken, if a rank finds another file than rank 0 under the name in the
/// run file, if a rank's GPU or library refuses rank 0's table, or if NCCL's variables differ between ranks.
void read_tables(World& world, const RunConfig& config, LibraryTables& tables);

}  // namespace slipstream::runtime

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Training programs that a plan can imitate, to predict runs of others: `plan --as`.

#include <string>
#include <vector>

#include "engine/config/machine.h"

namespace slipstream::planner {

struct SoftwareProfile {
  Software software;
  std::vector<std::string> sets;  // arguments of the run file before those of the command: the overlap of that program
};

/// Reads a file if `name` is the path of one. The names are slipstream (also for ""), megatron, fsdp, llmq, and those
/// of configs/software. "+fp8" after a name or path gives the products of layers fp8 operands.
/// Throws: ConfigError with the names, or with the place in the file.
SoftwareProfile software_profile(const std::string& name);

}  // namespace slipstream::planner

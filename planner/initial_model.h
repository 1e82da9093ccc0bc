// SPDX-License-Identifier: Apache-2.0
#pragma once
// The keys of [model] that a folder of initial weights decides.

#include <string>
#include <vector>

#include "engine/config/config.h"

namespace slipstream::planner {

/// Blocks. load_run_config() in which the folder of model.init, if there is one, decides the keys of [model] that
/// neither the run file nor `sets` has. Reads its config.json and the names of its tensors alone.
/// Throws: ConfigError; CheckpointError if the folder has no model that this program supports.
RunConfig load_run(const std::string& run_file, const std::vector<std::string>& sets);

}  // namespace slipstream::planner

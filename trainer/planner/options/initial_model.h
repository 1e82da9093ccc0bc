// SPDX-License-Identifier: Apache-2.0
#pragma once
// The keys of [model] that a folder of initial weights decides, or, for a run that resumes, its checkpoint.

#include <string>
#include <vector>

#include "engine/config/load.h"

namespace slipstream::planner {

/// Blocks. Does the same as load_run_config(), but the folder of model.init, if there is one, decides the keys of
/// [model] that neither the run file nor `sets` has. Reads only its config.json and the names of its tensors. With
/// `resumes`, the newest checkpoint decides these keys, if there is one, and the folder need not exist. The checkpoint
/// then also gives train.global_batch_size if neither the run file nor `sets` has it. Throws: ConfigError;
/// CheckpointError if the folder has no model that this program supports.
RunConfig load_run(const std::string& run_file, const std::vector<std::string>& sets, bool resumes = false);

/// Returns the same before resolution adds the values that other keys imply, for with_sets().
WrittenRun load_written(const std::string& run_file, const std::vector<std::string>& sets, bool resumes = false);

}  // namespace slipstream::planner

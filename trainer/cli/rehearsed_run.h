// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes the rehearsed steps of a plan as the files of a run: a timeline, and the page of slipstream report.

#include <string>

#include "trainer/planner/forecast/planned.h"

namespace slipstream::cli {

/// Blocks. Writes trace/rank*.json of the first rank of every pipeline stage into `folder`, as a run with trace.steps
/// does. Throws: ConfigError if the folder holds a run; ResourceError if it cannot be written.
void write_rehearsed_trace(const planner::Planned& planned, const comm::Rehearsal& rehearsal,
                           const std::string& folder);

/// Blocks. Writes the page of the rehearsed steps to `path`. Throws: ResourceError.
void write_rehearsed_page(const planner::Planned& planned, const comm::Rehearsal& rehearsal, const std::string& path);

}  // namespace slipstream::cli

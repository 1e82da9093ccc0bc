// SPDX-License-Identifier: Apache-2.0
#pragma once
// What slipstream plan does besides printing a plan: plans from measured times or another program's configuration, and
// the rehearsed steps as the files of a run (a timeline, and the page of slipstream report).

#include <string>

#include "trainer/planner/forecast/planned.h"

namespace slipstream::cli {

/// Blocks. Plans `request` for the configuration of the run in `folder`, with the mean time of every item in the run's
/// trace. Prints the rehearsed step beside the measured one, and a replay of the same run. `request.ranks` 0: the ranks
/// of the run.
/// Throws: DataError if the folder is incomplete or of another version; ConfigError, PlanError.
int plan_from(const std::string& folder, planner::PlanRequest request, bool json);

struct ImportOptions {
  std::string format, path;  // megatron, torchtitan or nemo; and its file
  std::string write;         // the path of the run file; empty: it is not written
  bool json = false;
};

/// Blocks. Prints the run file of the configuration, and, with request.machine, its forecast. `request.ranks` 0: the
/// ranks of the configuration. Throws: ConfigError, DataError, PlanError.
int plan_import(const ImportOptions& options, planner::PlanRequest request);

/// Blocks. Writes trace/rank*.json of the first rank of every pipeline stage into `folder`, as a run with trace.steps
/// does. Throws: ConfigError if the folder holds a run; ResourceError if it cannot be written.
void write_rehearsed_trace(const planner::Planned& planned, const comm::Rehearsal& rehearsal,
                           const std::string& folder);

/// Blocks. Writes the page of the rehearsed steps to `path`. Throws: ResourceError.
void write_rehearsed_page(const planner::Planned& planned, const comm::Rehearsal& rehearsal, const std::string& path);

}  // namespace slipstream::cli

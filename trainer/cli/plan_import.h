// SPDX-License-Identifier: Apache-2.0
#pragma once
// slipstream plan --import: forecasts another program's configuration.

#include <string>

#include "trainer/planner/forecast/planned.h"

namespace slipstream::cli {

struct ImportOptions {
  std::string format, path;  // megatron, torchtitan or nemo; and its file
  std::string write;         // the path of the run file; empty: it is not written
  bool json = false;
};

/// Blocks. Prints the run file of the configuration, and, with request.machine, its forecast. `request.ranks` 0: the
/// ranks of the configuration. Throws: ConfigError, DataError, PlanError.
int plan_import(const ImportOptions& options, planner::PlanRequest request);

}  // namespace slipstream::cli

// SPDX-License-Identifier: Apache-2.0
#pragma once
// From a run file and `--set` to a configuration.

#include <string>
#include <vector>

#include "engine/config/config.h"

namespace slipstream {

/// Where a command reads its configuration.
struct RunSource {
  std::string run_file;
  std::vector<std::string> sets;  // --set key=value
};

/// Reads the run file at `path`, then applies `sets` ("key=value", the last of equals wins; texts need no quotes) over
/// it, fills in what follows from the rest (resolve_defaults) and checks it (validate). Precedence: defaults < file <
/// sets. Files that the configuration names (data, weights, machines) are not touched. Throws: ConfigError, one
/// sentence with file:line:column (or the `--set`), what is wrong and the nearest name or the range.
RunConfig load_run_config(const std::string& path, const std::vector<std::string>& sets = {});

}  // namespace slipstream

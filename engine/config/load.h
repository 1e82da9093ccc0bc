// SPDX-License-Identifier: Apache-2.0
#pragma once
// Loads a configuration from a run file and `--set`.

#include <string>
#include <vector>

#include "engine/config/config.h"

namespace slipstream {

/// Sources of a command's configuration.
struct RunSource {
  std::string run_file;
  std::vector<std::string> sets;  // --set key=value
};

/// Reads the run file at `path` (empty: none), then applies `sets` ("key=value", the last of equal keys wins; texts
/// need no quotes) over it, fills in the derived values (resolve_defaults) and checks it (validate). Precedence:
/// defaults < file < sets. It does not read the files that the configuration names (data, weights, machines). Throws:
/// ConfigError, one sentence with file:line:column (or the `--set`), what is wrong and the nearest name or the range.
RunConfig load_run_config(const std::string& path, const std::vector<std::string>& sets = {});

}  // namespace slipstream

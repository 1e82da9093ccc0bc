// SPDX-License-Identifier: Apache-2.0
#pragma once
// Loads a configuration from a run file and `--set`.

#include <functional>
#include <string>
#include <vector>

#include "engine/config/config.h"

namespace slipstream {

/// The sources of a command's configuration.
struct RunSource {
  std::string run_file;
  std::vector<std::string> sets;  // --set key=value
};

/// Returns keys "key=value" of [model] for a configuration with model.init. `written` is the file with `sets`, and has
/// not been validated.
using KeysOfModel = std::function<std::vector<std::string>(const RunConfig& written)>;

/// Reads the run file at `path` (empty: none; else as path_or_shipped) and applies `sets` over it ("key=value"; the
/// last of equal keys wins, and texts need no quotes). Then it fills in the derived values (resolve_defaults) and
/// checks the result (validate). Precedence: defaults < `keys_of_model`, if it is given and model.init is set < file <
/// sets. It does not read the other files that the configuration names (data, machines). Throws: what `keys_of_model`
/// throws; ConfigError, one sentence with file:line:column (or the `--set`), what is wrong, and the nearest name or the
/// range.
RunConfig load_run_config(const std::string& path, const std::vector<std::string>& sets = {},
                          const KeysOfModel& keys_of_model = {});

/// The keys of a run file and the command line before resolution adds the values that others imply. Searches and
/// questions vary these keys, so that train.dtype = "float32" implies its own zero.gather_dtype and a new width its own
/// head_dim.
struct WrittenRun {
  RunConfig keys;
};

/// Does the first half of load_run_config(), which is with_sets(load_written_run(...), {}). Throws: as
/// load_run_config().
WrittenRun load_written_run(const std::string& path, const std::vector<std::string>& sets = {},
                            const KeysOfModel& keys_of_model = {});

/// Returns the configuration of `written` with `sets` over it. Throws: as load_run_config(). Pure.
RunConfig with_sets(const WrittenRun& written, const std::vector<std::string>& sets);

}  // namespace slipstream

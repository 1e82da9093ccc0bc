// SPDX-License-Identifier: Apache-2.0
#pragma once
// The table of all keys of a run file, and the texts written from it.

#include <string>
#include <string_view>
#include <vector>

#include "engine/config/config.h"
#include "engine/config/field.h"

namespace slipstream {

/// The most elements of a head that the kernels of attention hold.
inline constexpr int64_t kHeadDimMost = 256;

/// Returns one row per key, in the order of the reference page. To add a key, add one row here and one member in
/// config.h.
const std::vector<Field<RunConfig>>& run_fields();

/// Returns the value of a key in the syntax of a run file. Throws: InternalError if there is no such key. Pure.
std::string field_text(const RunConfig& config, std::string_view key);

/// Returns the whole configuration as a run file. For a resolved configuration this is `config.resolved.toml`. Loading
/// it gives an equal configuration. Pure.
std::string config_toml(const RunConfig& config);

/// Returns the page docs/reference/config.md. Pure.
std::string config_reference_markdown();

}  // namespace slipstream

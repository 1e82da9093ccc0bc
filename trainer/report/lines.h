// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files with one JSON object per line, read as far as they are sound.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/json.h"

namespace slipstream::report {

/// Sentences about files that are missing or damaged, for the page and the terminal.
using Missing = std::vector<std::string>;

/// Longest line that is read.
constexpr size_t kLongestLine = size_t{1} << 20;

/// Blocks. Calls `take` with every line. False if the file does not exist or cannot be read. Lines longer than
/// kLongestLine are passed as empty ones.
bool each_line(const std::string& path, const std::function<void(std::string_view line, bool ended)>& take);

/// Blocks. Calls `take` with every line that is a JSON object. Other lines, and those for which `take` throws a
/// DataError, are left out, with one sentence about `name` for all of them; a last line without its line feed is
/// still being written. False if the file does not exist.
bool each_object(const std::string& path, const std::string& name, Missing& missing,
                 const std::function<void(const Json& line)>& take);

}  // namespace slipstream::report

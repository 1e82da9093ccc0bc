// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads files with one JSON object per line as far as they are sound.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/json.h"

namespace slipstream::report {

/// Sentences about files that are missing or damaged, for the page and the terminal.
using Missing = std::vector<std::string>;

/// The longest line that is read.
constexpr size_t kLongestLine = size_t{1} << 20;

/// Blocks. Calls `take` with every line. Returns false if the file does not exist or cannot be read. Passes lines
/// longer than kLongestLine as empty ones.
bool each_line(const std::string& path, const std::function<void(std::string_view line, bool ended)>& take);

/// Blocks. Calls `take` with every line that is a JSON object. Leaves out other lines, and those for which `take`
/// throws a DataError, and adds one sentence about `name` for all of them. A last line without its line feed is still
/// being written. Returns false if the file does not exist.
bool each_object(const std::string& path, const std::string& name, Missing& missing,
                 const std::function<void(const Json& line)>& take);

}  // namespace slipstream::report

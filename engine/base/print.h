// SPDX-License-Identifier: Apache-2.0
#pragma once
// Results on stdout. A full disk or a reader that has ended is an error, not lost output.

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace slipstream {

/// Throws: ResourceError if stdout cannot be written.
void print_text(std::string_view text);

/// As fmt::print. Throws: ResourceError if stdout cannot be written.
template <typename... Args>
void print_result(fmt::format_string<Args...> format, Args&&... args) {
  print_text(fmt::format(format, std::forward<Args>(args)...));
}

/// Writes buffered output. Throws: ResourceError if it, or any earlier output, cannot be written.
void flush_printed();

}  // namespace slipstream

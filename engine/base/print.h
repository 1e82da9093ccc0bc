// SPDX-License-Identifier: Apache-2.0
#pragma once
// Results on stdout. If the disk is full or the reader has ended, that is an error, and output is not lost silently.

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace slipstream {

/// Prints `text`. Throws: ResourceError if stdout cannot be written.
void print_text(std::string_view text);

/// Prints as fmt::print does. Throws: ResourceError if stdout cannot be written.
template <typename... Args>
void print_result(fmt::format_string<Args...> format, Args&&... args) {
  print_text(fmt::format(format, std::forward<Args>(args)...));
}

/// Writes buffered output. Throws: ResourceError if this output or an earlier one cannot be written.
void flush_printed();

}  // namespace slipstream

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Messages of rank 0: progress and results on stdout, warnings on stderr. main() prints the error that ends a rank on
// every rank.

#include <fmt/core.h>

#include <string>
#include <utility>

namespace slipstream {

/// Sets this process's rank. Ranks other than 0 print nothing. It is called once, as soon as the rank is known. Until
/// then, the process acts as rank 0.
void log_setup(int rank);
int log_rank();

namespace detail {
bool log_enabled();
void log_line(bool warning, const std::string& text);
}  // namespace detail

/// Prints one line on stdout: "text". Any thread may call it.
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (detail::log_enabled()) detail::log_line(false, fmt::format(format, std::forward<Args>(args)...));
}

/// Prints one line on stderr: "warning: text". Any thread may call it.
template <typename... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  if (detail::log_enabled()) detail::log_line(true, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace slipstream

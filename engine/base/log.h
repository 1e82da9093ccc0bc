// SPDX-License-Identifier: Apache-2.0
#pragma once
// Lines for the person at the terminal, on stderr, by rank 0. What ends a rank is printed by main, whoever it is.

#include <fmt/core.h>

#include <string>
#include <utility>

namespace slipstream {

/// Who this process is: ranks but 0 are silent. Called once, when the rank is known; before that the process is rank 0.
void log_setup(int rank);

namespace detail {
bool log_enabled();
void log_line(bool warning, const std::string& text);
}  // namespace detail

/// One line on stderr: "text". Safe from any thread.
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (detail::log_enabled()) detail::log_line(false, fmt::format(format, std::forward<Args>(args)...));
}

/// One line on stderr: "warning: text". Safe from any thread.
template <typename... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  if (detail::log_enabled()) detail::log_line(true, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace slipstream

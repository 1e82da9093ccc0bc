// SPDX-License-Identifier: Apache-2.0
#pragma once
// Lines for the person at the terminal, on stderr, by rank 0 unless all ranks are asked for.

#include <string>
#include <utility>

#include <fmt/core.h>

namespace slipstream {

struct LogOptions {
  int rank = 0;
  int ranks = 1;           // with more than one, every line begins with "[rank R] "
  bool all_ranks = false;  // false: only rank 0 speaks
};

/// Who this process is. Called once, when the rank is known; before that the process is rank 0 of 1.
void log_setup(const LogOptions& options);

namespace detail {
bool log_enabled();
void log_line(bool warning, const std::string& text);
}  // namespace detail

/// One line on stderr: "[rank R] text". Safe from any thread.
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (detail::log_enabled()) detail::log_line(false, fmt::format(format, std::forward<Args>(args)...));
}

/// One line on stderr: "[rank R] warning: text". Safe from any thread.
template <typename... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  if (detail::log_enabled()) detail::log_line(true, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace slipstream

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counts with their noun in the singular or plural.

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace slipstream {

/// 1, "task" -> "1 task"; 2, "batch" -> "2 batches". Pure.
inline std::string counted(int64_t count, std::string_view noun) {
  const char* ending = count == 1 ? "" : noun.ends_with("ch") || noun.ends_with("s") ? "es" : "s";
  return fmt::format("{} {}{}", count, noun, ending);
}

}  // namespace slipstream

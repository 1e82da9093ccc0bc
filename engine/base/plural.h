// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counts with their noun in the singular or plural.

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace slipstream {

/// Returns "1 task" for 1 and "task", and "2 batches" for 2 and "batch". Pure.
inline std::string counted(int64_t count, std::string_view noun) {
  const char* ending = count == 1 ? "" : noun.ends_with("ch") || noun.ends_with("s") ? "es" : "s";
  return fmt::format("{} {}{}", count, noun, ending);
}

}  // namespace slipstream

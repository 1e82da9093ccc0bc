// SPDX-License-Identifier: Apache-2.0
// Compares a text across all ranks.

#include "runtime/agreement.h"

#include <sstream>
#include <utility>

#include "engine/base/check.h"

namespace slipstream::runtime {
namespace {

/// The first differing lines of two texts; empty if one text ends there.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream lines_a(a), lines_b(b);
  while (true) {
    std::string of_a, of_b;
    const bool more = static_cast<bool>(std::getline(lines_a, of_a)) | static_cast<bool>(std::getline(lines_b, of_b));
    if (of_a != of_b || !more) return {of_a, of_b};
  }
}

}  // namespace

void require_same(World& world, const std::string& what, const std::string& value, const std::string& remedy) {
  const std::vector<std::string> values = world.all_gather(value);
  world.together([&] {
    for (size_t r = 1; r < values.size(); ++r)
      if (values[r] != values[0]) {
        const auto [theirs, ours] = first_difference(values[r], values[0]);
        throw ConfigError("[train] rank {} and rank 0 disagree on the {} ({} and {}). {}", r, what, theirs, ours,
                          remedy);
      }
  });
}

}  // namespace slipstream::runtime

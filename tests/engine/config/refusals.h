// SPDX-License-Identifier: Apache-2.0
#pragma once
// Refusals of configurations, as text.

#include <string>
#include <vector>

#include "engine/base/check.h"
#include "tests/defaults.h"
#include "tests/test.hpp"

namespace slipstream::tests {

/// The sentence of a ConfigError, whose exit code is 2; "accepted" if there is no error.
template <typename F>
std::string refusal(F action) {
  try {
    action();
  } catch (const ConfigError& error) {
    CHECK(static_cast<int>(error.code()) == 2);
    return error.what();
  }
  return "accepted";
}

inline std::string load_refusal(const std::vector<std::string>& sets) {
  return refusal([&] { default_run_config(sets); });
}

inline RunConfig with(const std::vector<std::string>& sets) { return default_run_config(sets); }

}  // namespace slipstream::tests

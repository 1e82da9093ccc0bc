// SPDX-License-Identifier: Apache-2.0
// Ranges of the flags that choose among tokens.

#include "trainer/runtime/text/generate.h"

#include <cmath>

#include "engine/base/check.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::runtime;

TEST_CASE("sampling: options out of range are refused by name", "[generate]") {
  const auto refused = [](const SamplingOptions& options, const std::string& name) {
    try {
      check_sampling(options);
      FAIL(name << " was accepted");
    } catch (const ConfigError& error) {
      CHECK(std::string(error.what()).find(name) != std::string::npos);
    }
  };
  check_sampling({});
  refused({.temperature = -1}, "--temperature");
  refused({.temperature = NAN}, "--temperature");
  refused({.top_k = -1}, "--top-k");
  refused({.top_p = 0}, "--top-p");
  refused({.top_p = 1.1}, "--top-p");
  refused({.min_p = -0.1}, "--min-p");
  refused({.repetition_penalty = 0}, "--repetition-penalty");
}

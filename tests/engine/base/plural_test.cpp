// SPDX-License-Identifier: Apache-2.0
// Counts with their noun: only 1 takes the singular.

#include "engine/base/plural.h"

#include "tests/test.hpp"

using namespace slipstream;

TEST_CASE("counted: only 1 takes the singular", "[base]") {
  CHECK(counted(0, "task") == "0 tasks");
  CHECK(counted(1, "task") == "1 task");
  CHECK(counted(2, "task") == "2 tasks");
  CHECK(counted(1, "micro-batch") == "1 micro-batch");
  CHECK(counted(12, "micro-batch") == "12 micro-batches");
  CHECK(counted(2, "pass") == "2 passes");
}

// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every benchmark of a run file takes.

#include <string>

#include "engine/config/load.h"

namespace slipstream::bench {

struct BenchOptions : RunSource {
  int steps = 30;   // interleaved, counted
  std::string csv;  // path; empty: none
};

}  // namespace slipstream::bench

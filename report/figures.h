// SPDX-License-Identifier: Apache-2.0
#pragma once
// The figures of a run, which a comparison divides by those of another.

#include <string>
#include <vector>

#include "report/run_folder.h"

namespace slipstream::report {

struct Figure {
  enum class Better : uint8_t { lower, higher, neither };
  std::string key, label, unit;
  double value = 0;
  Better better = Better::neither;
  bool is_main = false;  // shown at the top of the page
};
const char* name_of(Figure::Better better);

/// Steps at the start that means leave out, as the summary of a run does.
constexpr size_t kWarmSteps = 2;

/// Pure. Only figures that the run has.
std::vector<Figure> figures_of(const RunFolder& run);

}  // namespace slipstream::report

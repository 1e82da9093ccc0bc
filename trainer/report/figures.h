// SPDX-License-Identifier: Apache-2.0
#pragma once
// The figures of a run. A comparison divides them by those of another run.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/report/run_folder.h"

namespace slipstream::report {

struct Figure {
  enum class Better : uint8_t { lower, higher, neither };
  std::string key, label, unit;
  double value = 0;
  Better better = Better::neither;
  bool is_main = false;         // shown at the top of the page
  std::optional<double> noise;  // of the difference to another run: half of its 99.8 % interval; none: unknown
};
const char* name_of(Figure::Better better);

/// The steps at the start that means leave out, as the summary of a run does.
constexpr size_t kWarmSteps = 2;

/// The steps that figures cover.
struct Covered {
  int64_t first = INT64_MIN, last = INT64_MAX;  // for means and least values; the warm steps do not count
  /// The steps of the last losses, or the last losses before them.
  int64_t loss = INT64_MAX, validation_loss = INT64_MAX;
};

/// Pure. Returns only figures that the run has.
std::vector<Figure> figures_of(const RunFolder& run, const Covered& steps = {});

/// The figures of several runs over the same steps.
struct Comparison {
  std::optional<Covered> steps;              // none: the runs share no step, and the figures cover all steps
  std::vector<std::vector<Figure>> figures;  // by run; the noise is that of the difference to the first run
};

/// Pure. Takes the differences of two runs step by step, so that what both runs share, such as equal batches, is no
/// noise. The noise of a mean is that of up to 20 means over successive steps. The noise of a last value is that of the
/// last 20 differences around their trend.
Comparison compare(const std::vector<const RunFolder*>& runs);

}  // namespace slipstream::report

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The figures of a run, which a comparison divides by those of another.

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

/// Steps at the start that means leave out, as the summary of a run does.
constexpr size_t kWarmSteps = 2;

/// The steps that figures cover.
struct Covered {
  int64_t first = INT64_MIN, last = INT64_MAX;            // of means and least values; the warm steps do not count
  int64_t loss = INT64_MAX, validation_loss = INT64_MAX;  // steps of the last losses, or the last ones before
};

/// Pure. Only figures that the run has.
std::vector<Figure> figures_of(const RunFolder& run, const Covered& steps = {});

/// Figures of several runs over equal steps.
struct Comparison {
  std::optional<Covered> steps;              // none: the runs share no step, and the figures are those of all steps
  std::vector<std::vector<Figure>> figures;  // by run; the noise is that of the difference to the first run
};

/// Pure. The differences of two runs are taken step by step, so that what both runs share, such as equal batches, is no
/// noise. The noise of a mean is that of up to 20 means over successive steps; the noise of a last value is that of the
/// last 20 differences around their trend.
Comparison compare(const std::vector<const RunFolder*>& runs);

}  // namespace slipstream::report

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes the page of one run, of several runs beside each other, or of a sweep.

#include <string>
#include <vector>

#include "trainer/report/lines.h"

namespace slipstream::report {

struct Page {
  std::string html;
  Missing missing;  // sentences that begin with the name of the run
};

/// The largest number of runs that one page compares.
constexpr size_t kMostRuns = 16;

/// Blocks. Makes one self-contained HTML page of the run folders, or of the folder of one sweep.
/// Throws: DataError if a path is no run folder; ConfigError for too many folders.
Page make_page(const std::vector<std::string>& folders);

/// Returns `json` as text inside a script element, which no character of it can end. Pure.
std::string script_safe(const std::string& json);

}  // namespace slipstream::report

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes the page of one run, of several beside each other, or of a sweep.

#include <string>
#include <vector>

#include "trainer/report/lines.h"

namespace slipstream::report {

struct Page {
  std::string html;
  Missing missing;  // sentences with the name of the run
};

/// Runs that one page compares.
constexpr size_t kMostRuns = 16;

/// Blocks. One self-contained HTML page of the run folders, or of the folder of one sweep.
/// Throws: DataError if a path is no run folder; ConfigError for too many.
Page make_page(const std::vector<std::string>& folders);

/// `json` as text inside a script element: no character of it can end the element. Pure.
std::string script_safe(const std::string& json);

}  // namespace slipstream::report

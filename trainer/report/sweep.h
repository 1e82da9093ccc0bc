// SPDX-License-Identifier: Apache-2.0
#pragma once
// The folder of a sweep (scripts/sweep.py) as JSON for the script of the page.

#include <string>

#include "engine/base/json.h"
#include "trainer/report/lines.h"

namespace slipstream::report {

/// Blocks. Returns true if the folder has a file that scripts/sweep.py wrote.
bool is_sweep(const std::string& folder);

/// Blocks. Returns an object with the members name, path, run, repeats, varied, points, timelines. A point: ranks,
/// settings [key, text], runs, failed, why, figures {name: [mean, low, high]}; a timeline: the point's index, its steps
/// and the spans of rank 0. Throws: DataError if sweep.json is damaged or of another version.
Json sweep_data(const std::string& folder, Missing& missing);

}  // namespace slipstream::report

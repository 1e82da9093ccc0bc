// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the page shows of one run, as JSON for its script.

#include "engine/base/json.h"
#include "report/run_folder.h"

namespace slipstream::report {

/// Pure. Members: name, path, facts, figures, missing, curves, causes, marks, settings, timeline, tasks, kernels,
/// schedule, memory, mesh. A part without data is absent.
Json page_data(RunFolder& run);

}  // namespace slipstream::report

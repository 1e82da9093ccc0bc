// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the page shows of one run, as JSON for its script.

#include "engine/base/json.h"
#include "report/planned.h"
#include "report/run_folder.h"

namespace slipstream::report {

/// Pure. Members: name, path, facts, figures, missing, curves, causes, marks, settings, timeline, tasks, kernels,
/// schedule, memory, mesh. A part without data is absent.
Json page_data(RunFolder& run);

/// Pure. The spans of traced steps: [name, kind, item, awaited, channel of the awaited, op, type, operations, bytes,
/// group] by name, and for every rank and span the name, channel, begin and duration in ns, one after the other.
Json timeline_data(const Trace& trace, const Planned& planned);

}  // namespace slipstream::report

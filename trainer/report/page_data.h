// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the page shows of one run, as JSON for its script.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/json.h"
#include "trainer/report/planned.h"
#include "trainer/report/run_folder.h"

namespace slipstream::report {

/// Pure. Returns an object with the members name, path, facts, figures, missing, curves, causes, marks, settings,
/// timeline, tasks, kernels, schedule, memory, mesh. A part without data is absent.
Json page_data(RunFolder& run);

/// Pure. Returns the spans of traced steps. By name they are [name, kind, item, awaited, channel of the awaited, op,
/// type, operations, bytes, group]. Every rank has a flat list with the name, channel, step, begin and duration in ns
/// of each span. `waits` of a rank may be absent: a flat list with the numbers of spans and the time at their beginning
/// for which they waited for their last member. Shows the first `ranks_max` ranks.
Json timeline_data(const Trace& trace, const Planned& planned, size_t ranks_max = SIZE_MAX);

/// Changes only `data`, which gets `shared_steps` ([first, last], or null) and `compared` (figures by run over the same
/// steps). There must be at least two runs.
void add_comparison(const std::vector<const RunFolder*>& runs, Json& data);

}  // namespace slipstream::report

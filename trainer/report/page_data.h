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

/// Pure. Members: name, path, facts, figures, missing, curves, causes, marks, settings, timeline, tasks, kernels,
/// schedule, memory, mesh. A part without data is absent.
Json page_data(RunFolder& run);

/// Pure. The spans of traced steps: [name, kind, item, awaited, channel of the awaited, op, type, operations, bytes,
/// group] by name, and for every rank and span the name, channel, step, begin and duration in ns, one after the other.
/// `waits` of a rank may be absent: numbers of spans and the time at their beginnings in which they waited for their
/// last member, one after the other. Shows the first `ranks_max` ranks.
Json timeline_data(const Trace& trace, const Planned& planned, size_t ranks_max = SIZE_MAX);

/// Pure but for `data`, which gets `shared_steps` ([first, last], or null) and `compared` (figures by run over equal
/// steps). At least two runs.
void add_comparison(const std::vector<const RunFolder*>& runs, Json& data);

}  // namespace slipstream::report

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The fastest layouts of a search with fewer bytes for gradients and parameters on the wire.

#include <cstddef>
#include <string>
#include <vector>

#include "planner/search.h"

namespace slipstream::planner {

/// Narrower types of the run's values on the wire, as arguments of --set, the most precise first: gradients as
/// bfloat16, or as int8 with one scale for 128 values; ZeRO's parameters as int8. Pure.
std::vector<std::vector<std::string>> narrower_wires(const ResolvedConfig& config);

/// Rehearses the first layouts of `result` with each of their narrower types. Returns those whose step is at least half
/// a percent shorter than that of their layout, the fastest first. They round what travels, so that the training
/// changes, and a search does not mix them with layouts that keep it. Pure.
std::vector<NarrowerWire> rehearse_narrower_wires(const SearchResult& result, const RunConfig& written, int threads);

}  // namespace slipstream::planner

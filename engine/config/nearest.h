// SPDX-License-Identifier: Apache-2.0
#pragma once
// The known name that is nearest to a misspelt one.

#include <string>
#include <string_view>
#include <vector>

namespace slipstream {

/// Returns the candidate with the fewest insertions, deletions, replacements and swaps of neighbours from `name`. A
/// candidate with the same part after the last dot counts as one edit away. Returns an empty text if the best distance
/// exceeds a third of the length (at least 2). The first of equal candidates wins. Pure. Source: Damerau 1964, "A
/// technique for computer detection and correction of spelling errors" (restricted form).
std::string nearest(std::string_view name, const std::vector<std::string_view>& candidates);

}  // namespace slipstream

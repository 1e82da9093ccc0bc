// SPDX-License-Identifier: Apache-2.0
#pragma once
// The name that somebody probably meant.

#include <string>
#include <string_view>
#include <vector>

namespace slipstream {

/// The candidate with the fewest insertions, deletions, replacements and swaps of neighbours from `name`; a candidate
/// whose part behind the last dot is exactly that of `name` counts as one edit away. Empty when the best is further
/// than a third of the length (at least 2). The earliest of equals wins. Pure. Source: Damerau 1964, "A technique for
/// computer detection and correction of spelling errors" (restricted form).
std::string nearest(std::string_view name, const std::vector<std::string_view>& candidates);

}  // namespace slipstream

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The fields of the files that a run writes, and their reference page.

#include <string>

namespace slipstream::runtime {

/// Returns the page docs/reference/metrics.md. Pure.
std::string records_reference_markdown();

}  // namespace slipstream::runtime

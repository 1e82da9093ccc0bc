// SPDX-License-Identifier: Apache-2.0
#pragma once
// Refuses to start a run on which ranks disagree.

#include <string>

#include "runtime/world.h"

namespace slipstream::runtime {

/// Blocks. Collective. Throws: AgreedFailure (code 2) with the first line in which a rank's `value` differs from rank
/// 0's. `what` names the value.
void require_same(World& world, const std::string& what, const std::string& value,
                  const std::string& remedy = "Start all ranks with the same run file, flags and build.");

}  // namespace slipstream::runtime

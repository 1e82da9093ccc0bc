// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads distributed weights piece by piece, so that no rank holds more than one piece of other ranks' weights.

#include <functional>
#include <memory>
#include <vector>

#include "trainer/runtime/rank/rank.h"
#include "trainer/runtime/rank/world.h"
#include "trainer/runtime/weights/weights.h"

namespace slipstream::runtime {

/// Blocks. Collective. Calls use(reads) on rank 0 with the current weights (&BucketStorage::master) of every stage,
/// while the other ranks answer its reads. After all ranks have stopped, rank 0 rethrows errors of `use`, and every
/// other rank its own errors.
void with_weights(World& world, Rank& rank, const std::vector<std::shared_ptr<const Job>>& stages,
                  const std::function<void(const std::vector<ReadWeights>&)>& use);

}  // namespace slipstream::runtime

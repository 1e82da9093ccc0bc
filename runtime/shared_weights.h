// SPDX-License-Identifier: Apache-2.0
#pragma once
// Weights of which every rank has a part, read piece by piece: no rank ever holds more of the others' than one piece.

#include <functional>
#include <memory>
#include <vector>

#include "runtime/rank.h"
#include "runtime/weights.h"
#include "runtime/world.h"

namespace slipstream::runtime {

/// Blocks. Collective. Calls use(reads) on rank 0, with the weights (&BucketStorage::master) of every stage as they are
/// now; the other ranks meanwhile answer its reads. What `use` throws leaves rank 0, and what fails while answering
/// leaves the rank it fails on, when all have stopped.
void with_weights(World& world, Rank& rank, const std::vector<std::shared_ptr<const Job>>& stages,
                  const std::function<void(const std::vector<ReadWeights>&)>& use);

}  // namespace slipstream::runtime

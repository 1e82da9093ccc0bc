// SPDX-License-Identifier: Apache-2.0
#pragma once
// Communicators between GPUs.

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi/mpi_world.h"

namespace slipstream::comm {

/// Blocks. Collective among `ranks`, as make_mpi_communicator; MPI only carries the identifiers.
/// Throws: CommError with a sentence when this build has no NCCL.
std::unique_ptr<Communicator> make_nccl_communicator(MpiWorld& world, const std::vector<int>& ranks, int channel,
                                                     const CommOptions& options = {});

}  // namespace slipstream::comm

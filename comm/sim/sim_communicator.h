// SPDX-License-Identifier: Apache-2.0
#pragma once
// Communicators for the sim device: works with names, accesses and costs that never run.

#include <memory>

#include "comm/communicator.h"

namespace slipstream::comm {

/// Rank `rank` of a group of `size`. Needs no peers. split throws CommError: groups are made from the mesh.
std::unique_ptr<Communicator> make_sim_communicator(int rank, int size);

}  // namespace slipstream::comm

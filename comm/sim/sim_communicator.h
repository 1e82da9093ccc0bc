// SPDX-License-Identifier: Apache-2.0
#pragma once
// Communicators for the sim device: works with names, accesses and costs that never run.

#include <memory>

#include "comm/communicator.h"

namespace slipstream::comm {

/// Makes rank `rank` of a group of `size` without peers.
std::unique_ptr<Communicator> make_sim_communicator(int rank, int size);

}  // namespace slipstream::comm

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranks as threads of one process: for tests.

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/host/bind.h"

namespace slipstream::comm {

/// Makes one communicator for each rank of one group; each is used by the thread of its rank. An abort of one aborts
/// the group. Both algorithms give the bits of HostCommunicator's. Throws: CommError if `ranks` is below 1.
std::vector<std::unique_ptr<Communicator>> make_thread_world(int ranks, const CommOptions& options = {});

}  // namespace slipstream::comm

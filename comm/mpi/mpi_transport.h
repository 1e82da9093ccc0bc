// SPDX-License-Identifier: Apache-2.0
#pragma once
// Messages over a separate MPI communicator.

#include <mpi.h>

#include <memory>

#include "comm/host/transport.h"

namespace slipstream::comm {

/// Collective. Takes ownership of `connection`, whose errors are returned. MPI must allow several threads. Peers on
/// this machine use shared memory, unless `share_memory` is false.
std::unique_ptr<HostTransport> make_mpi_transport(MPI_Comm connection, bool share_memory);

}  // namespace slipstream::comm

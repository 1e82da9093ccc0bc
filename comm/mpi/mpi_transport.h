// SPDX-License-Identifier: Apache-2.0
#pragma once
// Messages over an MPI communicator of their own.

#include <mpi.h>

#include <memory>

#include "comm/host/transport.h"

namespace slipstream::comm {

/// Takes ownership of `connection`, whose errors are returned. MPI must allow several threads. Peers of this machine
/// use memory that they share, unless `share_memory` is false. Collective.
std::unique_ptr<HostTransport> make_mpi_transport(MPI_Comm connection, bool share_memory);

}  // namespace slipstream::comm

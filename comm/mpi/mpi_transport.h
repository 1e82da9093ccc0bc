// SPDX-License-Identifier: Apache-2.0
#pragma once
// Messages over a separate MPI communicator.

#include <mpi.h>

#include <memory>

#include "comm/host/transport.h"

namespace slipstream::comm {

/// Carriers of messages besides MPI.
struct Carriers {
  bool share_memory = true;  // to peers on this machine
  bool sockets = true;       // to peers on other machines, where every rank can connect and none has a faster network
};

/// Collective. Takes ownership of `connection`, whose errors are returned. MPI must allow several threads.
std::unique_ptr<HostTransport> make_mpi_transport(MPI_Comm connection, const Carriers& carriers);

}  // namespace slipstream::comm

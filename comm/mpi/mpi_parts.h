// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the files of this folder share: MPI's error codes as messages, and transports and verbs over a communicator.

#include <mpi.h>

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/host/transport.h"

namespace slipstream::comm {

/// Throws: CommError with MPI's own text if `code` is not success. `what` names the operation.
void check_mpi(int code, const std::string& what);

/// Carriers of messages besides MPI.
struct Carriers {
  bool share_memory = true;  // to peers on this machine
  bool sockets = true;       // to peers on other machines, where every rank can connect and none has a faster network
};

/// Collective. Takes ownership of `connection`, whose errors are returned. MPI must allow several threads.
std::unique_ptr<HostTransport> make_mpi_transport(MPI_Comm connection, const Carriers& carriers);

/// A communicator whose verbs are those of the MPI library. Owns `connection`. Float32 and float64; the order of
/// additions is the library's.
std::unique_ptr<Communicator> make_library_communicator(MPI_Comm connection);

}  // namespace slipstream::comm

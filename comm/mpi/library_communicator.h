// SPDX-License-Identifier: Apache-2.0
#pragma once
// A communicator whose verbs are those of the MPI library.

#include <mpi.h>

#include <memory>

#include "comm/communicator.h"

namespace slipstream::comm {

/// Owns `connection`. Float32 and float64; the order of additions is the library's.
std::unique_ptr<Communicator> make_library_communicator(MPI_Comm connection);

}  // namespace slipstream::comm

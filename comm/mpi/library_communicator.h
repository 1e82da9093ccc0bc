// SPDX-License-Identifier: Apache-2.0
#pragma once
// A communicator whose verbs are those of the MPI library.

#include <mpi.h>

#include <memory>

#include "comm/communicator.h"

namespace slipstream::comm {

/// Owns `connection`. Sums float32 and float64; the library determines the order of additions.
std::unique_ptr<Communicator> make_library_communicator(MPI_Comm connection);

}  // namespace slipstream::comm

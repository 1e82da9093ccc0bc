// SPDX-License-Identifier: Apache-2.0
#pragma once
// MPI's error codes as messages.

#include <mpi.h>

#include <string>

namespace slipstream::comm {

/// Throws: CommError with MPI's own text if `code` is not success. `what` names the operation.
void check_mpi(int code, const std::string& what);

}  // namespace slipstream::comm

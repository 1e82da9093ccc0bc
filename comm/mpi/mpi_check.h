// SPDX-License-Identifier: Apache-2.0
#pragma once
// MPI's error codes as sentences.

#include <mpi.h>

#include <string>

namespace slipstream::comm {

/// Throws: CommError with MPI's own text if `code` is not success. `what` says what was tried.
void check_mpi(int code, const std::string& what);

}  // namespace slipstream::comm

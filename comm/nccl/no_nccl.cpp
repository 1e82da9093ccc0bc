// SPDX-License-Identifier: Apache-2.0
// The factory of a build without NCCL throws one error.

#include "comm/nccl/nccl.h"
#include "engine/base/check.h"

namespace slipstream::comm {

int nccl_version() { return 0; }

std::vector<NcclUse> nccl_uses() { return {}; }

void prepare_nccl_environment(const NcclEnvironment&) {}

CudaMemory nccl_device_memory() { return {}; }

std::unique_ptr<Communicator> make_nccl_communicator(int, int size, const ShareBytes&, const NcclOptions& options) {
  throw CommError(
      "[nccl] {} of {} ranks was requested, but this build has no NCCL. Use the cpu device with MPI, or "
      "configure with -Dnccl=enabled where NCCL is installed.",
      options.name, size);
}

}  // namespace slipstream::comm

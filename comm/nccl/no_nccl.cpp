// SPDX-License-Identifier: Apache-2.0
// The factory of a build without NCCL: one sentence.

#include "comm/nccl/nccl.h"
#include "engine/base/check.h"

namespace slipstream::comm {

std::unique_ptr<Communicator> make_nccl_communicator(MpiWorld&, const std::vector<int>& ranks, int channel,
                                                     const CommOptions&) {
  throw CommError("[nccl] channel {} of {} ranks was asked for, but this build has no NCCL. Use the cpu device with MPI, or "
                  "configure with -Dnccl=enabled where NCCL is installed.", channel, ranks.size());
}

}  // namespace slipstream::comm

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The driver versions from which on NCCL lets operations of different communicators run concurrently.

#include <cstdlib>
#include <string_view>

namespace slipstream::comm {

// Driver versions are numbered as in CUDA: 12090 is 12.9. With NCCL_LAUNCH_ORDER_IMPLICIT, older drivers end one
// operation before the next one of any communicator begins; newer ones only make them begin in order. Source: NCCL
// 2.27, src/enqueue.cc, getImplicitOrder; its user guide, "Using multiple NCCL communicators concurrently".
constexpr int kConcurrentLaunches = 12030;
constexpr int kConcurrentCaptures = 12090;  // while a step is recorded as a graph, and whenever that graph is replayed

/// Does NCCL run operations one after the other? `driver` 0 means unknown and returns false, as does a user's
/// NCCL_LAUNCH_ORDER_IMPLICIT=0. Reads that environment variable.
inline bool nccl_serialises(int driver, bool captured) {
  const char* implicit = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  if (implicit && std::string_view(implicit) == "0") return false;
  return driver > 0 && driver < (captured ? kConcurrentCaptures : kConcurrentLaunches);
}

}  // namespace slipstream::comm

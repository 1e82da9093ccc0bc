// SPDX-License-Identifier: Apache-2.0
#pragma once
// The driver versions from which on NCCL lets operations of different communicators run concurrently.

namespace slipstream::comm {

// Driver versions are numbered as in CUDA: 12090 is 12.9. With NCCL_LAUNCH_ORDER_IMPLICIT, older drivers end one
// operation before the next one of any communicator begins; newer ones only make them begin in order. Source: NCCL
// 2.27, src/enqueue.cc, getImplicitOrder; its user guide, "Using multiple NCCL communicators concurrently".
constexpr int kConcurrentLaunches = 12030;
constexpr int kConcurrentCaptures = 12090;  // while a step is recorded as a graph, and whenever that graph is replayed

/// Does NCCL run operations one after the other? The result is false for `driver` 0, which means unknown, and with a
/// user's NCCL_LAUNCH_ORDER_IMPLICIT=0. Reads that environment variable.
bool nccl_serialises(int driver, bool captured);

}  // namespace slipstream::comm

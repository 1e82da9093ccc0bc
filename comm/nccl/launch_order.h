// SPDX-License-Identifier: Apache-2.0
#pragma once
// When NCCL lets operations of different communicators run beside each other, by the driver.

namespace slipstream::comm {

// As the driver numbers its CUDA: 12090 is 12.9. With NCCL_LAUNCH_ORDER_IMPLICIT older ones end one operation before
// the next of any communicator begins; newer ones only let them begin in order. Source: NCCL 2.27, src/enqueue.cc,
// getImplicitOrder; its user guide, "Using multiple NCCL communicators concurrently".
constexpr int kConcurrentLaunches = 12030;
constexpr int kConcurrentCaptures = 12090;  // while a step is recorded as a graph, and whenever that is replayed

/// `driver` 0: not known, so nothing is said against it. Reads NCCL_LAUNCH_ORDER_IMPLICIT: whoever turns it off has no
/// such order.
bool nccl_serialises(int driver, bool captured);

}  // namespace slipstream::comm

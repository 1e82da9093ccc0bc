// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bandwidth of collectives as nccl-tests counts it, and the link that explains measured times.

#include <cstdint>
#include <vector>

#include "engine/plan/plan.h"

namespace slipstream::bench {

/// Returns bus bandwidth / algorithm bandwidth: the bytes that every rank must send for each byte of the operation. The
/// size of the operation is that of the largest buffer. Pure.
double bus_factor(Op op, int ranks);

/// One measured size.
struct TimedTransfer {
  double rounds = 0;  // messages that follow each other, see comm::wire_rounds
  double bytes = 0;   // sent by a rank, see comm::wire_bytes
  double seconds = 0;
};

/// Hockney's model: seconds = rounds x latency + bytes / bandwidth.
struct LinkFit {
  double latency_s = 0;
  double bytes_per_second = 0;  // 0: the times do not depend on the bytes
  double error_max = 0;         // the largest |predicted / measured - 1|
};

/// Returns the latency and bandwidth, both at least 0, with the smallest sum of squared relative errors. All are zero
/// without a sample. Pure.
LinkFit fit_link(const std::vector<TimedTransfer>& samples);

}  // namespace slipstream::bench

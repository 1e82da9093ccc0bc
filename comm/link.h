// SPDX-License-Identifier: Apache-2.0
#pragma once
// The cost of a collective on a link, by the one formula that the emulated link and the rehearsal share.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/plan/plan.h"

namespace slipstream::comm {

/// One direction of a full-duplex port. Hockney's model: a message costs latency + bytes / bandwidth.
struct Link {
  double bytes_per_second = 0;  // 0: unlimited
  int64_t latency_ns = 0;       // of one message
};

struct WireCost {
  int64_t latency_ns = 0;  // rounds x latency of the link; occupies no bandwidth
  int64_t bytes = 0;       // sent by the rank that sends most; for recv: received
  int64_t wire_ns = 0;     // bytes / bandwidth, with the port to itself, rounded up
};

/// The number of messages that must follow each other: direct 1 (all_reduce 2), ring n-1 (all_reduce 2(n-1)),
/// all_to_all_v and point to point 1. Pure.
int wire_rounds(Op op, Algorithm algorithm, int ranks);

/// The bytes that the busiest rank sends, for `elems` as in Task::elems. part = ceil(elems / n). Pure.
///   all_reduce      direct elems + (n-2) part, ring 2 min((n-1) part, elems): both 2(n-1)/n elems when n divides elems
///   reduce_scatter, all_gather, all_to_all   (n-1) elems
///   all_to_all_v    (n-1) elems, at balanced load
///   send, recv, exchange   elems
int64_t wire_bytes(Op op, Algorithm algorithm, int ranks, int64_t elems, DType dtype);

/// The longest transfer in virtual time, 19 hours. Longer ones are cut to it.
constexpr int64_t kLongestTransferNs = int64_t{1} << 46;

/// Pure. The cost of one task of a group of `ranks` on `link`. It is zero for one rank and for local ops.
WireCost wire_cost(Op op, Algorithm algorithm, int ranks, int64_t elems, DType dtype, const Link& link);

}  // namespace slipstream::comm

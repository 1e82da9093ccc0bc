// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a transfer costs on a link: the one formula that the emulated link enforces and the rehearsal charges.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/plan/plan.h"

namespace slipstream::comm {

/// One full-duplex port per rank, shared by all its channels.
struct Link {
  double bytes_per_second = 0;  // of one direction; 0: infinite
  int64_t latency_ns = 0;       // of one round
};

/// A transfer ends no earlier than latency_ns + wire_ns after its last member has entered.
struct WireCost {
  int64_t latency_ns = 0;  // Link::latency_ns x rounds
  int64_t bytes = 0;       // that the busiest direction of one rank really carries
  int64_t wire_ns = 0;     // bytes / Link::bytes_per_second, with the port to itself
};

/// `elems` is Task::elems. Rounds: direct 1 (all_reduce 2); ring n-1 (all_reduce 2(n-1)); point to point 1. Pure.
WireCost wire_cost(Op op, Algorithm algorithm, int ranks, int64_t elems, DType dtype, const Link& link);

}  // namespace slipstream::comm

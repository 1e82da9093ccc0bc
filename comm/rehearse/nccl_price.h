// SPDX-License-Identifier: Apache-2.0
#pragma once
// The cost of NCCL's collectives over nodes of GPUs: the fastest of its algorithms, with their latencies.

#include <cstdint>

#include "comm/link.h"

namespace slipstream::comm {

/// The links of a cluster. Every GPU has its own port to the switch of its node, and its own adapter.
struct Fabric {
  Link node;     // as ring collectives inside a node reach it
  Link network;  // of one adapter
  double reduce_bytes_per_second =
      0;  // the bus bandwidth of an all-reduce inside a node whose switch adds (NVLS); 0: none
};

/// The ranks of a group, which has equally many in each of its nodes.
struct GroupSpan {
  int ranks = 1;
  int per_node = 1;
  int nodes() const { return per_node > 0 ? (ranks + per_node - 1) / per_node : 1; }
};

/// Pure. `elems` as in Task::elems. WireCost::wire_ns is the bytes over the rate of the slowest link on the path.
///
/// Rings enter a node through all adapters of its members, so their rate is min(node, per_node x network). An
/// all-reduce is the fastest of a ring, a tree over nodes (latency grows with log2, 0.92 of the rate; NCCL 2.27,
/// src/graph/tuning.cc) and the switch of a node.
WireCost nccl_cost(Op op, const GroupSpan& span, int64_t elems, DType dtype, const Fabric& fabric);

}  // namespace slipstream::comm

// SPDX-License-Identifier: Apache-2.0
// Rounds, bytes and nanoseconds of a collective on a link.

#include "comm/link.h"

#include <algorithm>
#include <cmath>

#include "engine/base/units.h"

namespace slipstream::comm {

int wire_rounds(Op op, Algorithm algorithm, int ranks) {
  if (ranks <= 1 || !is_communication(op)) return 0;
  if (op == Op::send || op == Op::recv || op == Op::exchange || op == Op::all_to_all_v) return 1;
  const int sweep = algorithm == Algorithm::ring ? ranks - 1 : 1;
  return op == Op::all_reduce ? 2 * sweep : sweep;
}

int64_t wire_bytes(Op op, Algorithm algorithm, int ranks, int64_t elems, DType dtype) {
  if (ranks <= 1 || !is_communication(op)) return 0;
  const int64_t one = bytes_of(elems, dtype);
  const int64_t others = ranks - 1;
  switch (op) {
    case Op::all_reduce: {
      const int64_t part = ceil_div(elems, ranks);
      const int64_t sent =
          algorithm == Algorithm::ring ? 2 * std::min(others * part, elems) : elems + (ranks - 2) * part;
      return bytes_of(sent, dtype);
    }
    case Op::reduce_scatter:
    case Op::all_gather:
    case Op::all_to_all:
    case Op::all_to_all_v:
      return others * one;
    default:
      return one;
  }
}

WireCost wire_cost(Op op, Algorithm algorithm, int ranks, int64_t elems, DType dtype, const Link& link) {
  WireCost cost;
  cost.latency_ns = wire_rounds(op, algorithm, ranks) * link.latency_ns;
  cost.bytes = wire_bytes(op, algorithm, ranks, elems, dtype);
  if (link.bytes_per_second > 0)
    cost.wire_ns = static_cast<int64_t>(
        std::min<double>(kLongestTransferNs, std::ceil(static_cast<double>(cost.bytes) * 1e9 / link.bytes_per_second)));
  return cost;
}

}  // namespace slipstream::comm

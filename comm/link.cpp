// SPDX-License-Identifier: Apache-2.0
// Rounds and bytes of every verb.

#include "comm/link.h"

#include <cmath>

#include "engine/base/units.h"

namespace slipstream::comm {

WireCost wire_cost(Op op, Algorithm algorithm, int ranks, int64_t elems, DType dtype, const Link& link) {
  const int64_t bytes = bytes_of(elems, dtype);
  const int64_t others = ranks - 1;
  const bool ring = algorithm == Algorithm::ring;
  int64_t rounds = 0;
  WireCost cost;
  switch (op) {
    case Op::all_reduce:
      rounds = ring ? 2 * others : 2;
      cost.bytes = ceil_div(2 * others * bytes, ranks);
      break;
    case Op::reduce_scatter:
    case Op::all_gather:
      rounds = ring ? others : 1;
      cost.bytes = others * bytes;
      break;
    case Op::all_to_all:
      rounds = 1;
      cost.bytes = others * bytes;
      break;
    case Op::broadcast:
      rounds = ring ? others : 1;
      cost.bytes = ring ? bytes : others * bytes;
      break;
    case Op::send:
    case Op::recv:
    case Op::exchange:
      rounds = 1;
      cost.bytes = bytes;
      break;
    default: return cost;
  }
  if (ranks == 1) return {};
  cost.latency_ns = rounds * link.latency_ns;
  if (link.bytes_per_second > 0)
    cost.wire_ns = static_cast<int64_t>(std::ceil(static_cast<double>(cost.bytes) * 1e9 / link.bytes_per_second));
  return cost;
}

}  // namespace slipstream::comm

// SPDX-License-Identifier: Apache-2.0
<<<<<<< HEAD
// Rounds and bytes of every verb.

#include "comm/link.h"

=======
// Rounds, bytes and nanoseconds of a collective on a link.

#include "comm/link.h"

#include <algorithm>
>>>>>>> plan
#include <cmath>

#include "engine/base/units.h"

namespace slipstream::comm {

<<<<<<< HEAD
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
=======
int wire_rounds(Op op, Algorithm algorithm, int ranks) {
  if (ranks <= 1 || !is_communication(op)) return 0;
  if (op == Op::send || op == Op::recv || op == Op::exchange) return 1;
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
    case Op::all_to_all: return others * one;
    case Op::broadcast: return algorithm == Algorithm::ring ? one : others * one;
    default: return one;
  }
}

WireCost wire_cost(Op op, Algorithm algorithm, int ranks, int64_t elems, DType dtype, const Link& link) {
  WireCost cost;
  cost.latency_ns = wire_rounds(op, algorithm, ranks) * link.latency_ns;
  cost.bytes = wire_bytes(op, algorithm, ranks, elems, dtype);
>>>>>>> plan
  if (link.bytes_per_second > 0)
    cost.wire_ns = static_cast<int64_t>(std::ceil(static_cast<double>(cost.bytes) * 1e9 / link.bytes_per_second));
  return cost;
}

}  // namespace slipstream::comm

// SPDX-License-Identifier: Apache-2.0
// The prices of rings, trees and switches.

#include "comm/rehearse/nccl_price.h"

#include <algorithm>
#include <cmath>

#include "engine/base/units.h"

namespace slipstream::comm {
namespace {

int64_t time_ns(double bytes, double rate) {
  return rate > 0 ? static_cast<int64_t>(std::min<double>(kLongestTransferNs, std::ceil(bytes * 1e9 / rate))) : 0;
}

/// 0 is unlimited.
double slower(double a, double b) { return a <= 0 ? b : b <= 0 ? a : std::min(a, b); }

}  // namespace

WireCost nccl_cost(Op op, const GroupSpan& span, int64_t elems, DType dtype, const Fabric& fabric) {
  if (span.ranks <= 1 || !is_communication(op)) return {};
  const int nodes = span.nodes();
  const bool crosses = nodes > 1;
  const Link& slowest = crosses ? fabric.network : fabric.node;
  if (op != Op::all_reduce && op != Op::reduce_scatter && op != Op::all_gather)
    return wire_cost(op, Algorithm::ring, span.ranks, elems, dtype, slowest);
  WireCost cost;
  cost.bytes = wire_bytes(op, Algorithm::ring, span.ranks, elems, dtype);
  const auto bytes = static_cast<double>(cost.bytes);
  const double ring_rate = crosses
                               ? slower(fabric.node.bytes_per_second, fabric.network.bytes_per_second * span.per_node)
                               : fabric.node.bytes_per_second;
  const int64_t sweep_ns =
      (span.ranks - nodes) * fabric.node.latency_ns + (crosses ? (nodes - 1) * fabric.network.latency_ns : 0);
  cost.latency_ns = (op == Op::all_reduce ? 2 : 1) * sweep_ns;
  cost.wire_ns = time_ns(bytes, ring_rate);
  if (op != Op::all_reduce) return cost;
  const auto consider = [&](int64_t latency_ns, double rate) {
    const int64_t wire_ns = time_ns(bytes, rate);
    if (latency_ns + wire_ns >= cost.latency_ns + cost.wire_ns) return;
    cost.latency_ns = latency_ns;
    cost.wire_ns = wire_ns;
  };
  if (!crosses && fabric.reduce_bytes_per_second > 0) consider(cost.latency_ns, fabric.reduce_bytes_per_second);
  if (crosses) {
    constexpr double kTreeRate = 0.92;
    const auto depth = static_cast<int64_t>(std::ceil(std::log2(nodes)));
    consider(2 * (depth * fabric.network.latency_ns + (span.per_node - 1) * fabric.node.latency_ns),
             ring_rate * kTreeRate);
  }
  return cost;
}

}  // namespace slipstream::comm

// SPDX-License-Identifier: Apache-2.0
// Roofline and measured prices.

#include "comm/rehearse/price.h"

#include <algorithm>
#include <cmath>

namespace slipstream::comm {

WireCost Price::wire(const Plan& plan, ItemId item, Axis axis, int ranks) const {
  const Task& task = plan.task(item);
  return wire_cost(task.op, task.algorithm, ranks, task.elems, task.dtype, link(axis));
}

void RooflinePrice::set_link(Axis axis, const Link& link, uint32_t port) {
  links_[static_cast<size_t>(axis)] = link;
  ports_[static_cast<size_t>(axis)] = port;
}

void RooflinePrice::set_group(Axis axis, const GroupSpan& span, const Fabric& fabric) {
  spans_[static_cast<size_t>(axis)] = span;
  fabric_ = fabric;
}

WireCost RooflinePrice::wire(Op op, Algorithm algorithm, Axis axis, int ranks, int64_t elems, DType dtype) const {
  const GroupSpan& span = spans_[static_cast<size_t>(axis)];
  return span.ranks == ranks ? nccl_cost(op, span, elems, dtype, fabric_)
                             : wire_cost(op, algorithm, ranks, elems, dtype, link(axis));
}

WireCost RooflinePrice::wire(const Plan& plan, ItemId item, Axis axis, int ranks) const {
  const Task& task = plan.task(item);
  return wire(task.op, task.algorithm, axis, ranks, task.elems, task.dtype);
}

double RooflinePrice::seconds(const Cost& cost) const {
  if (rates_.kernels) {
    if (cost.kernels.empty()) return kernel_seconds({.flops = cost.flops, .bytes = cost.bytes}, *rates_.kernels);
    double sum = 0;
    for (const KernelCost& kernel : cost.kernels) sum += kernel_seconds(kernel, *rates_.kernels);
    return sum;
  }
  double seconds = 0;
  if (rates_.flops_per_second > 0) seconds = static_cast<double>(cost.flops) / rates_.flops_per_second;
  if (rates_.bytes_per_second > 0)
    seconds = std::max(seconds, static_cast<double>(cost.bytes) / rates_.bytes_per_second);
  return seconds;
}

int64_t RooflinePrice::local_ns(const Plan& plan, ItemId item) const {
  const Item& work = plan[item];
  const double time_s = (work.op == Op::snapshot || work.op == Op::seal) && rates_.snapshot_bytes_per_second > 0
                            ? static_cast<double>(work.cost.bytes) / rates_.snapshot_bytes_per_second
                            : seconds(work.cost);
  return static_cast<int64_t>(std::ceil(time_s * 1e9)) + launches(work.cost) * rates_.launch_ns;
}

int64_t RooflinePrice::host_ns(const Plan& plan, ItemId item) const {
  return launches(plan[item].cost) * rates_.host_ns;
}

int64_t RooflinePrice::launches(const Cost& cost) const {
  return rates_.kernels ? std::max<int64_t>(1, std::ssize(cost.kernels)) : 1;
}

int64_t MeasuredPrice::measured_ns(const Plan& plan, ItemId item) const {
  const auto found = measured_.find(&plan);
  return found == measured_.end() || item >= found->second.size() ? -1 : found->second[item];
}

int64_t MeasuredPrice::local_ns(const Plan& plan, ItemId item) const {
  const int64_t time_ns = measured_ns(plan, item);
  return time_ns >= 0 ? time_ns : otherwise_.local_ns(plan, item);
}

WireCost MeasuredPrice::wire(const Plan& plan, ItemId item, Axis axis, int ranks) const {
  WireCost cost = otherwise_.wire(plan, item, axis, ranks);
  if (const int64_t time_ns = measured_ns(plan, item); time_ns >= 0) {
    cost.latency_ns = 0;
    cost.wire_ns = time_ns;
  }
  return cost;
}

}  // namespace slipstream::comm

// SPDX-License-Identifier: Apache-2.0
// The roofline and the measured prices.

#include "comm/rehearse/price.h"

#include <algorithm>
#include <cmath>

namespace slipstream::comm {
namespace {

/// Both ends of a transfer have the times of `send`. An all_to_all_v has those of `exchange`, in which every rank also
/// sends and receives at once.
const VerbTimes* verb_of(const HostTimes& host, Op op, int ranks) {
  const Op measured = op == Op::recv ? Op::send : op == Op::all_to_all_v ? Op::exchange : op;
  return ranks > 1 && is_communication(op) ? host.verb(name_of(measured), ranks) : nullptr;
}

int64_t time_at(int64_t bytes, int64_t bytes_per_second) {
  return bytes_per_second <= 0
             ? 0
             : static_cast<int64_t>(std::min<double>(
                   kLongestTransferNs,
                   std::ceil(static_cast<double>(bytes) * 1e9 / static_cast<double>(bytes_per_second))));
}

}  // namespace

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
  if (const VerbTimes* verb = rates_.measured ? verb_of(*rates_.measured, op, ranks) : nullptr) {
    // On an emulated link, the bytes move while the link's time runs.
    WireCost cost = wire_cost(op, algorithm, ranks, elems, dtype, link(axis));
    const int64_t wire_ns = time_at(cost.bytes, verb->bytes_per_second);
    cost.wire_ns = rates_.emulated ? std::max(cost.wire_ns, wire_ns) : wire_ns;
    cost.latency_ns = (rates_.emulated ? cost.latency_ns + rates_.measured->emulated_ns : verb->latency_ns) +
                      rates_.measured->crowded_wait_ns(ranks, rates_.shared.ranks, rates_.shared.threads);
    return cost;
  }
  const GroupSpan& span = spans_[static_cast<size_t>(axis)];
  return span.ranks == ranks ? nccl_cost(op, span, elems, dtype, fabric_)
                             : wire_cost(op, algorithm, ranks, elems, dtype, link(axis));
}

WireCost RooflinePrice::wire(const Plan& plan, ItemId item, Axis axis, int ranks) const {
  const Task& task = plan.task(item);
  return wire(task.op, task.algorithm, axis, ranks, task.elems, task.dtype);
}

double RooflinePrice::measured_seconds(const Cost& cost) const {
  const WorkTimes& times = works();
  const auto find = [&](const Cost& part) {
    const auto found = times.works.find(shape_of(part));
    return found == times.works.end() ? -1.0 : static_cast<double>(found->second.time_ns) * 1e-9;
  };
  if (const double whole = find(cost); whole >= 0) return whole;
  const auto at = [](int64_t amount, double rate) { return rate > 0 ? static_cast<double>(amount) / rate : 0; };
  double sum = 0;
  for (const KernelCost& kernel : cost.kernels) {
    const double known = find({.flops = kernel.flops, .bytes = kernel.bytes, .kernels = {kernel}});
    sum += known >= 0                           ? known
           : kernel.kind == KernelKind::product ? at(kernel.flops, times.products_per_second)
           : kernel.kind == KernelKind::scores  ? at(kernel.flops, times.scores_per_second)
                                                : at(kernel.bytes, times.bytes_per_second);
  }
  return cost.kernels.empty() ? at(cost.bytes, times.bytes_per_second) : sum;
}

int64_t RooflinePrice::core_ns(const Plan& plan, ItemId item, int ranks) const {
  const Task& task = plan.task(item);
  const VerbTimes* verb = rates_.measured ? verb_of(*rates_.measured, task.op, ranks) : nullptr;
  if (!verb) return 0;
  const int64_t bytes = wire_bytes(task.op, task.algorithm, ranks, task.elems, task.dtype);
  return verb->core_ns + static_cast<int64_t>(verb->core_ns_per_byte * static_cast<double>(bytes));
}

double RooflinePrice::seconds(const Cost& cost) const {
  if (rates_.measured) return measured_seconds(cost);
  if (rates_.kernels) {
    if (cost.kernels.empty()) return kernel_seconds({.flops = cost.flops, .bytes = cost.bytes}, *rates_.kernels);
    double sum = 0;
    for (const KernelCost& kernel : cost.kernels) sum += seconds(kernel);
    return sum;
  }
  double seconds = 0;
  if (rates_.flops_per_second > 0) seconds = static_cast<double>(cost.flops) / rates_.flops_per_second;
  if (rates_.bytes_per_second > 0)
    seconds = std::max(seconds, static_cast<double>(cost.bytes) / rates_.bytes_per_second);
  return seconds;
}

size_t RooflinePrice::KernelHash::operator()(const KernelCost& kernel) const {
  uint64_t hash = static_cast<uint64_t>(kernel.kind) * 4 + kernel.backward * 2 + kernel.in_layer;
  for (const int64_t value : {kernel.flops, kernel.bytes, kernel.rows, kernel.cols, kernel.depth, kernel.count})
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x9E3779B97F4A7C15ull, hash ^= hash >> 29;
  return hash;
}

double RooflinePrice::seconds(const KernelCost& kernel) const {
  if (kernel.kind == KernelKind::moved) return kernel_seconds(kernel, *rates_.kernels);
  const auto [found, is_new] = known_.try_emplace(kernel, 0.0);
  if (is_new) found->second = kernel_seconds(kernel, *rates_.kernels);
  return found->second;
}

int64_t RooflinePrice::local_ns(const Plan& plan, ItemId item) const {
  const Item& work = plan[item];
  if (rates_.measured && work.op != Op::compute)
    if (const int64_t time_ns = works().local_time_ns(name_of(work.op), work.cost.bytes); time_ns >= 0)
      return time_ns + rates_.launch_ns;
  const double rate = work.op == Op::snapshot ? rates_.snapshot_bytes_per_second
                      : work.op == Op::seal   ? rates_.seal_bytes_per_second
                                              : 0;
  const double time_s = rate > 0 ? static_cast<double>(work.cost.bytes) / rate : seconds(work.cost);
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

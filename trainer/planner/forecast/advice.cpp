// SPDX-License-Identifier: Apache-2.0
// Sorts the time of a rehearsed step by its cause.

#include "trainer/planner/forecast/advice.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include <fmt/core.h>

#include "engine/base/check.h"
#include "trainer/planner/options/plan_options.h"

namespace slipstream::planner {
namespace {

/// Returns the part of an item's time that works limited by memory take.
double memory_share(const comm::RooflinePrice& price, const Machine& machine, const Cost& cost) {
  const double whole = price.seconds(cost);
  if (whole <= 0) return 0;
  double moved = 0;
  if (machine.attention_efficiency > 0) {
    for (const KernelCost& kernel : cost.kernels)
      if (kernel.kind == KernelKind::moved)
        moved += price.seconds(Cost{.flops = kernel.flops, .bytes = kernel.bytes, .kernels = {kernel}});
    if (cost.kernels.empty()) moved = whole;
  } else if (machine.bytes_per_second > 0 &&
             static_cast<double>(cost.bytes) / static_cast<double>(machine.bytes_per_second) >= whole) {
    moved = whole;
  }
  return moved / whole;
}

std::string layer_text(int layer, int layers) {
  return layer < 0 ? "the embedding" : layer >= layers ? "the head" : fmt::format("layer {}", layer);
}

/// Returns "backward of layer 3", or the item's own name.
std::string words_of(const Job& job, ItemId id) {
  const Plan& plan = job.train();
  if (plan.is_spine(id)) {
    const uint32_t index = plan.spine[id].piece;
    if (plan[id].op != Op::compute || index >= job.model.pieces.size()) return plan[id].name;
    for (const Chunk& chunk : job.chunks)
      for (const auto& [pass, name] :
           {std::pair{Pass::forward, "forward"}, {Pass::backward, "backward"}, {Pass::weight, "weight gradients"}}) {
        const std::vector<uint32_t>& pieces = chunk.pieces(pass);
        if (std::find(pieces.begin(), pieces.end(), index) != pieces.end())
          return fmt::format("{} of {}", name, layer_text(job.model.pieces[index].layer, job.model.layers));
      }
    return plan[id].name;
  }
  const Task& task = plan.task(id);
  if (task.bucket < 0 || !job.layout.buckets[static_cast<size_t>(task.bucket)].unit) return task.name;
  const Bucket& bucket = job.layout.buckets[static_cast<size_t>(task.bucket)];
  const PlacedPart& part = job.layout.parts[bucket.first_part];
  return fmt::format("{} of {}", name_of(task.op),
                     layer_text(job.model.parameters[part.part.parameter].layer, job.model.layers));
}

}  // namespace

const char* name_of(Bottleneck bottleneck) {
  constexpr const char* kNames[] = {"compute", "memory", "bandwidth", "latency", "bubble", "input"};
  return kNames[static_cast<size_t>(bottleneck)];
}

Bottleneck StepShares::largest() const {
  return static_cast<Bottleneck>(std::max_element(ms.begin(), ms.end()) - ms.begin());
}

double StepShares::sum_ms() const { return std::accumulate(ms.begin(), ms.end(), 0.0); }

StepShares shares_of(const Planned& planned, const comm::Rehearsal& rehearsal) {
  StepShares shares;
  if (!rehearsal.finished) return shares;
  const Job& job = *planned.finished.stages.front();
  const comm::RankTimes& times = rehearsal.ranks.front();
  const comm::RooflinePrice price = price_of(*planned.config, planned.machine, job.mesh);
  const auto add = [&](Bottleneck bottleneck, double ns) {
    shares.ms[static_cast<size_t>(bottleneck)] += ms_of_a_step(static_cast<int64_t>(ns));
  };
  for (const std::vector<comm::Span>& spans : times.runs)
    for (ItemId id = 0; id < job.train().spine.size(); ++id) {
      const auto ns = static_cast<double>(spans[id].duration_ns());
      const double moved = memory_share(price, planned.machine, job.train()[id].cost);
      add(Bottleneck::memory, moved * ns);
      add(Bottleneck::compute, (1 - moved) * ns);
    }
  for (const comm::Exposed& wait : times.exposed) {
    const auto ns = static_cast<double>(wait.time_ns);
    if (!is_communication(job.train()[wait.awaited].op)) {
      add(job.train()[wait.awaited].op == Op::load ? Bottleneck::input : Bottleneck::memory, ns);
      continue;
    }
    const Axis axis = job.channels[job.train()[wait.awaited].channel].axis;
    const comm::WireCost cost = price.wire(job.train(), wait.awaited, axis, job.mesh.group_size(axis));
    const double latency = static_cast<double>(cost.latency_ns) /
                           static_cast<double>(std::max<int64_t>(1, cost.latency_ns + cost.wire_ns));
    add(Bottleneck::latency, latency * ns);
    add(Bottleneck::bandwidth, (1 - latency) * ns);
  }
  add(Bottleneck::bubble, static_cast<double>(std::max<int64_t>(0, times.bubble_ns)));
  return shares;
}

std::vector<LongWait> longest_waits(const Planned& planned, const comm::Rehearsal& rehearsal, size_t count) {
  std::map<std::pair<std::string, std::string>, int64_t> sums_ns;
  const Job& job = *planned.finished.stages.front();
  if (rehearsal.finished)
    for (const comm::Exposed& wait : rehearsal.ranks.front().exposed)
      sums_ns[{words_of(job, wait.item), words_of(job, wait.awaited)}] += wait.time_ns;
  std::vector<LongWait> waits;
  for (const auto& [words, ns] : sums_ns)
    waits.push_back({.waiter = words.first, .awaited = words.second, .ms = ms_of_a_step(ns)});
  std::stable_sort(waits.begin(), waits.end(), [](const LongWait& a, const LongWait& b) { return a.ms > b.ms; });
  if (waits.size() > count) waits.resize(count);
  return waits;
}

}  // namespace slipstream::planner

// SPDX-License-Identifier: Apache-2.0
// Adds up the spans of a trace by task, kernel and pass.

#include "trainer/report/measured.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

namespace slipstream::report {
namespace {

/// Returns the task of an item: "mlp.0/3" is run 3 of "mlp.0".
std::string task_of(const std::string& item) { return item.substr(0, item.rfind('/')); }

/// Returns a text that is equal for both ends of a message between stages: for "send.x.part0/3" and "recv.x.part1/3" it
/// is "x/3".
std::string message_of(const std::string& item) {
  constexpr size_t verb = std::string_view("send.").size();
  std::string message = item.size() < verb ? item : item.substr(verb);
  const size_t part = message.find(".part");
  if (part == std::string::npos) return message;
  const size_t slash = message.find('/', part);
  return message.substr(0, part) + (slash == std::string::npos ? "" : message.substr(slash));
}

int64_t micro_batch_of(const std::string& item) {
  const size_t slash = item.rfind('/');
  if (slash == std::string::npos || slash + 1 == item.size()) return -1;
  int64_t number = 0;
  for (char c : item.substr(slash + 1)) {
    if (c < '0' || c > '9' || number > 1'000'000) return -1;
    number = 10 * number + (c - '0');
  }
  return number;
}

/// Adds a pass. Adjacent passes of the same kind and micro-batch become one.
void add_pass(std::vector<Pass>& passes, const Pass& pass) {
  constexpr int64_t apart_ns = 50'000;
  if (!passes.empty()) {
    Pass& last = passes.back();
    const int64_t end_ns = last.begin_ns + last.ns;
    if (last.kind == pass.kind && last.micro_batch == pass.micro_batch && pass.begin_ns - end_ns < apart_ns) {
      last.ns = std::max(end_ns, pass.begin_ns + pass.ns) - last.begin_ns;
      return;
    }
  }
  passes.push_back(pass);
}

Pass::Kind kind_of(const std::string& item, int64_t micro_batch) {
  if (micro_batch < 0) return Pass::Kind::update;
  return item.find("gradient") != std::string::npos || item.find("recompute") != std::string::npos
             ? Pass::Kind::backward
             : Pass::Kind::forward;
}

std::vector<Pass> predicted_passes(const PlannedStage& stage) {
  std::vector<const PlannedItem*> items;
  for (const PlannedItem& item : stage.items)
    if (item.channel == 0 && item.ns > 0) items.push_back(&item);
  std::stable_sort(items.begin(), items.end(),
                   [](const PlannedItem* a, const PlannedItem* b) { return a->begin_ns < b->begin_ns; });
  std::vector<Pass> passes;
  for (const PlannedItem* item : items) {
    const int64_t micro_batch = item->op == "compute" ? item->micro_batch : -1;
    add_pass(passes, {kind_of(item->name, micro_batch), micro_batch, item->begin_ns, item->ns});
  }
  return passes;
}

std::vector<Pass> measured_passes(const Trace& trace, const RankTrace& rank, int64_t step) {
  std::vector<Pass> passes;
  for (const TraceSpan& span : rank.spans) {
    const SpanName& name = trace.names[span.name];
    if (span.step != step || span.channel != 0 || name.kind != SpanName::Kind::kernel) continue;
    const int64_t micro_batch = micro_batch_of(name.item);
    add_pass(passes, {kind_of(name.item, micro_batch), micro_batch, span.begin_ns, span.duration_ns});
  }
  return passes;
}

/// Returns a text that is equal on all members of a communication in a step. Empty: the span is none, or its members
/// are unknown.
std::string rendezvous_of(const Planned& planned, int stage, const SpanName& name, const std::string& channel) {
  if (name.op.empty() || name.item.empty() || name.kind != SpanName::Kind::communication) return "";
  if (name.op == "send" || name.op == "recv") return message_of(name.item);
  if (stage < 0 || stage >= std::ssize(planned.stages)) return "";
  for (const PlannedChannel& planned_channel : planned.stages[static_cast<size_t>(stage)].channels)
    if (planned_channel.name == channel &&
        (planned_channel.axis == "world" || planned_channel.axis == "hosts" || planned_channel.axis == "pipeline"))
      return name.item;
  return fmt::format("{} on stage {}", name.item, stage);
}

/// Returns, by stage and task, the time in all steps of the trace: for a kernel's item, the mean over the stage's
/// ranks; for communication, the shortest of its members, which may be on other stages.
std::map<std::pair<int, std::string>, double> measured_totals(const Planned& planned, const Trace& trace) {
  struct Item {
    double sum_ns = 0;
    int ranks = 0;
    std::string rendezvous;  // equal on all members of a communication; empty: there is none
  };
  std::map<std::tuple<int, int64_t, std::string>, Item> items;  // by stage, step and item
  std::map<std::pair<int64_t, std::string>, double> least_ns;   // by step and rendezvous
  for (const RankTrace& rank : trace.ranks) {
    const int stage = planned.stage_of(rank.rank);
    if (stage < 0) continue;
    std::map<std::pair<int64_t, std::string>, Item> of_rank;  // an item may have several works
    for (const TraceSpan& span : rank.spans) {
      const SpanName& name = trace.names[span.name];
      if (name.kind == SpanName::Kind::wait || name.item.empty()) continue;
      Item& item = of_rank[{span.step, name.item}];
      item.sum_ns += static_cast<double>(span.duration_ns);
      item.rendezvous = rendezvous_of(planned, stage, name, rank.channels[static_cast<size_t>(span.channel)]);
    }
    for (const auto& [key, item] : of_rank) {
      Item& of_stage = items[{stage, key.first, key.second}];
      of_stage.sum_ns += item.sum_ns;
      of_stage.rendezvous = item.rendezvous;
      ++of_stage.ranks;
      if (item.rendezvous.empty()) continue;
      const auto [least, is_first] = least_ns.try_emplace({key.first, item.rendezvous}, item.sum_ns);
      if (!is_first) least->second = std::min(least->second, item.sum_ns);
    }
  }
  std::map<std::pair<int, std::string>, double> totals;
  for (const auto& [key, item] : items)
    totals[{std::get<0>(key), task_of(std::get<2>(key))}] +=
        item.rendezvous.empty() ? item.sum_ns / item.ranks : least_ns.at({std::get<1>(key), item.rendezvous});
  return totals;
}

void begin_at_zero(std::vector<StageSchedule>& stages, std::vector<Pass> StageSchedule::*passes) {
  int64_t origin_ns = INT64_MAX;
  for (const StageSchedule& stage : stages)
    for (const Pass& pass : stage.*passes) origin_ns = std::min(origin_ns, pass.begin_ns);
  for (StageSchedule& stage : stages)
    for (Pass& pass : stage.*passes) pass.begin_ns -= origin_ns;
}

}  // namespace

std::vector<TaskTime> task_times(const Planned& planned, const Trace& trace) {
  std::map<std::pair<int, std::string>, TaskTime> tasks;
  for (int stage = 0; stage < static_cast<int>(planned.stages.size()); ++stage) {
    const PlannedStage& of_stage = planned.stages[static_cast<size_t>(stage)];
    for (const PlannedItem& item : of_stage.items) {
      TaskTime& task = tasks[{stage, task_of(item.name)}];
      task.stage = stage;
      task.name = task_of(item.name);
      task.op = item.op;
      if (item.channel >= 0 && item.channel < std::ssize(of_stage.channels))
        task.channel = of_stage.channels[static_cast<size_t>(item.channel)].name;
      ++task.runs;
      task.predicted_ns += static_cast<double>(item.ns);
      task.sent_bytes += static_cast<double>(item.sent_bytes);
    }
  }
  const std::map<std::pair<int, std::string>, double> totals = measured_totals(planned, trace);
  std::vector<TaskTime> result;
  for (auto& [key, task] : tasks) {
    const auto found = totals.find(key);
    if (found == totals.end()) continue;
    task.measured_ns = found->second / static_cast<double>(trace.steps.size());
    result.push_back(task);
  }
  std::stable_sort(result.begin(), result.end(), [](const TaskTime& a, const TaskTime& b) {
    return std::abs(a.measured_ns - a.predicted_ns) > std::abs(b.measured_ns - b.predicted_ns);
  });
  return result;
}

std::vector<std::vector<int64_t>> waits_inside(const Planned& planned, const Trace& trace) {
  // An item may have several works, which follow one another.
  using Key = std::pair<int64_t, std::string>;  // step and rendezvous
  const auto key_of = [&](const RankTrace& rank, const TraceSpan& span) {
    return Key{span.step, rendezvous_of(planned, planned.stage_of(rank.rank), trace.names[span.name],
                                        rank.channels[static_cast<size_t>(span.channel)])};
  };
  std::vector<std::map<Key, int64_t>> sums(trace.ranks.size());
  std::map<Key, int64_t> least;
  for (size_t r = 0; r < trace.ranks.size(); ++r) {
    for (const TraceSpan& span : trace.ranks[r].spans)
      if (Key key = key_of(trace.ranks[r], span); !key.second.empty()) sums[r][std::move(key)] += span.duration_ns;
    for (const auto& [key, sum_ns] : sums[r]) {
      const auto [found, is_first] = least.try_emplace(key, sum_ns);
      if (!is_first) found->second = std::min(found->second, sum_ns);
    }
  }
  std::vector<std::vector<int64_t>> waits(trace.ranks.size());
  for (size_t r = 0; r < trace.ranks.size(); ++r)
    for (const TraceSpan& span : trace.ranks[r].spans) {
      int64_t& wait_ns = waits[r].emplace_back(0);
      const auto sum = sums[r].find(key_of(trace.ranks[r], span));
      if (sum == sums[r].end()) continue;
      int64_t& left_ns = sum->second;  // the time of the item that remains after its earlier works
      const int64_t beyond_ns = left_ns - least.at(sum->first);
      wait_ns = std::clamp<int64_t>(beyond_ns, 0, span.duration_ns);
      left_ns -= wait_ns;
    }
  return waits;
}

std::vector<KernelTime> kernel_times(const Planned& planned, const Trace& trace) {
  std::map<std::string, KernelTime> kernels;
  for (const RankTrace& rank : trace.ranks)
    for (const TraceSpan& span : rank.spans) {
      const SpanName& name = trace.names[span.name];
      if (name.kind != SpanName::Kind::kernel) continue;
      // "mlp.0/1/matmul" belongs to the kernel matmul, and "save.master.bucket2" to the kernel save.master.bucket.
      const std::string work = name.work() == name.name ? kind_of_task(name.name) : name.work();
      KernelTime& kernel = kernels[work];
      kernel.name = work;
      ++kernel.runs;
      kernel.measured_ns += static_cast<double>(span.duration_ns);
      if (name.flops < 0 || name.bytes < 0 || planned.flops_per_second <= 0 || planned.bytes_per_second <= 0) continue;
      const double compute_ns = 1e9 * static_cast<double>(name.flops) / planned.flops_per_second;
      const double memory_ns = 1e9 * static_cast<double>(name.bytes) / planned.bytes_per_second;
      kernel.flops += static_cast<double>(name.flops);
      kernel.bytes += static_cast<double>(name.bytes);
      kernel.bound_ns += std::max(compute_ns, memory_ns);
      kernel.is_compute_bound = compute_ns > memory_ns;
    }
  std::vector<KernelTime> result;
  const double steps = static_cast<double>(trace.steps.size() * trace.ranks.size());
  for (auto& [name, kernel] : kernels) {
    for (double* value : {&kernel.runs, &kernel.measured_ns, &kernel.flops, &kernel.bytes, &kernel.bound_ns})
      *value /= steps;
    result.push_back(kernel);
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const KernelTime& a, const KernelTime& b) { return a.measured_ns > b.measured_ns; });
  return result;
}

std::vector<StageSchedule> schedules(const Planned& planned, const Trace& trace) {
  if (planned.stages.size() < 2) return {};
  std::vector<StageSchedule> stages;
  for (int s = 0; s < static_cast<int>(planned.stages.size()); ++s) {
    StageSchedule stage{
        .stage = s, .predicted = predicted_passes(planned.stages[static_cast<size_t>(s)]), .measured = {}};
    for (const RankTrace& rank : trace.ranks)
      if (stage.measured.empty() && planned.stage_of(rank.rank) == s && !trace.steps.empty())
        stage.measured = measured_passes(trace, rank, trace.steps[trace.steps.size() / 2]);
    stages.push_back(std::move(stage));
  }
  begin_at_zero(stages, &StageSchedule::predicted);
  begin_at_zero(stages, &StageSchedule::measured);
  return stages;
}

}  // namespace slipstream::report

// SPDX-License-Identifier: Apache-2.0
// Plans and rehearses the run file with one setting changed at a time.

#include "trainer/planner/forecast/alternatives.h"

#include <algorithm>
#include <map>

#include "engine/base/check.h"

namespace slipstream::planner {
namespace {

using Sets = std::vector<std::string>;

/// Returns arguments of --set that may shorten the step. The run file or the layout may refuse some of them.
std::vector<Sets> changes(const Planned& planned) {
  const RunConfig& config = *planned.config;
  const Job& job = *planned.finished.job;
  const MeshSizes& sizes = job.mesh.sizes();
  const bool crosses_nodes = job.mesh.crosses_nodes(Axis::data, planned.machine.ranks_per_node);
  const std::string shards_in_nodes = fmt::format("zero.shard_size={}", planned.machine.ranks_per_node);
  std::vector<Sets> found;
  const auto add = [&](const char* key, const auto& value) { found.push_back({fmt::format("{}={}", key, value)}); };
  if (job.reduces()) {
    if (config.train.dtype == DType::bf16 && job.options.reduce_wire == DType::f32) add("comm.grad_dtype", "bfloat16");
    if (config.overlap.grad_reduce != ReduceMode::bucketed) add("overlap.grad_reduce", "bucketed");
    for (const int64_t size_bytes : {config.overlap.bucket_size_bytes / 4, config.overlap.bucket_size_bytes * 4})
      add("overlap.bucket_size", fmt::format("{}B", size_bytes));
    if (!config.overlap.optimizer_per_bucket) add("overlap.optimizer_per_bucket", true);
    if (planned.micro_batches > 1) add("train.micro_batch_size", 2 * config.train.micro_batch_size);
    add("train.global_batch_size", 2 * planned.global_batch);
    if (!config.zero.sharding().states && crosses_nodes) found.push_back({"zero.stage=1", shards_in_nodes});
  }
  if (config.zero.sharding().states) {
    for (int64_t stage = 0; stage < config.zero.stage; ++stage) add("zero.stage", stage);
    if (!config.overlap.param_gather) add("overlap.param_gather", true);
    if (config.zero.shard_size == 0 && crosses_nodes) found.push_back({shards_in_nodes});
    if (config.zero.sharding().parameters) add("zero.prefetch_depth", config.zero.prefetch_depth + 1);
  }
  if (sizes.tensor > 1) {
    add("parallel.tensor", sizes.tensor / 2);
    add("overlap.tensor_chunks", 2 * config.overlap.tensor_chunks);
  }
  if (sizes.expert > 1 && !config.overlap.paired_passes && sizes.pipeline == 1 && planned.micro_batches > 1)
    add("overlap.paired_passes", true);
  if (sizes.expert > 1 && config.parallel.expert_exchange == ExpertExchange::exact)
    add("parallel.expert_exchange", "gather");
  else if (sizes.expert > 1 && !planned.config.on_gpus())
    add("parallel.expert_exchange", "exact");
  if (sizes.pipeline > 1) {
    add("parallel.pipeline", sizes.pipeline / 2);
    if (!config.overlap.p2p) add("overlap.p2p", true);
    if (config.pipeline.schedule_file.empty() && config.pipeline.schedule == ScheduleKind::one_f_one_b)
      for (auto kind = ScheduleKind::interleaved_1f1b; static_cast<size_t>(kind) < kWords<ScheduleKind>.size();
           kind = static_cast<ScheduleKind>(static_cast<size_t>(kind) + 1)) {
        found.push_back({fmt::format("pipeline.schedule={}", name_of(kind))});
        if (chunks_of(kind) == 0) found.back().emplace_back("pipeline.virtual_stages=2");
      }
    if (config.train.micro_batch_size % 2 == 0) add("train.micro_batch_size", config.train.micro_batch_size / 2);
  }
  if (config.train.recompute != Recomputation::none) add("train.recompute", "none");
  if (config.train.recompute == Recomputation::full) add("train.recompute", "selective");
  return found;
}

}  // namespace

LargestExposed largest_exposed(const Planned& planned, const comm::Rehearsal& rehearsal) {
  const Job& job = *planned.finished.job;
  const comm::RankTimes& times = rehearsal.ranks.front();
  std::map<ChannelId, int64_t> of_channel_ns;
  std::map<ItemId, int64_t> of_task_ns;
  for (const comm::Exposed& exposed : times.exposed)
    if (const Item& awaited = job.train()[exposed.awaited]; is_communication(awaited.op)) {
      of_channel_ns[awaited.channel] += exposed.time_ns;
      of_task_ns[exposed.awaited] += exposed.time_ns;
    }
  if (of_task_ns.empty()) return {};
  const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto worst = std::max_element(of_channel_ns.begin(), of_channel_ns.end(), less);
  std::erase_if(of_task_ns, [&](const auto& entry) { return job.train()[entry.first].channel != worst->first; });
  const auto largest = std::max_element(of_task_ns.begin(), of_task_ns.end(), less);
  const Channel& channel = job.channels[worst->first];
  // Whole gradients accumulate over the micro-batches and travel once.
  const bool once = (channel.role == Role::reduce || channel.role == Role::reduce_across) &&
                    job.buffers.micro_batches > 1 && job.mesh.stages() == 1 && !job.sharding().gradients;
  return {.channel = channel.name,
          .exposed_ms = ms_of_a_step(worst->second),
          .busy_ms = ms_of_a_step(times.busy_ns[worst->first]),
          .task = job.train()[largest->first].name,
          .task_ms = ms_of_a_step(largest->second),
          .under_last_of = once ? job.buffers.micro_batches : 1,
          .crosses_nodes = planned.config->comm.emulate.bandwidth_bytes_per_second == 0 &&
                           job.mesh.crosses_nodes(channel.axis, planned.machine.ranks_per_node)};
}

std::vector<Alternative> faster_alternatives(const Planned& planned, const comm::Rehearsal& rehearsal) {
  constexpr size_t kMostItems = 50'000;     // of a step on all stages; more items take seconds per rehearsal
  constexpr double kWorthPrinting = 0.995;  // the share of the time per sequence below which a change is printed
  size_t items = 0;
  for (const auto& stage : planned.finished.stages) items += stage->train().size();
  if (items > kMostItems) return {};
  const auto per_sequence = [](double step_ms, int64_t sequences) { return step_ms / static_cast<double>(sequences); };
  const double now_ms = per_sequence(totals_of(planned, rehearsal).step_ms, planned.global_batch);
  std::vector<Alternative> faster;
  for (const Sets& sets : changes(planned)) {
    PlanRequest request = planned.request;
    request.sets.insert(request.sets.end(), sets.begin(), sets.end());
    request.proves = false;
    try {
      const Planned other = make_plan(request);
      const comm::Rehearsal rehearsed = rehearse_step(other);
      if (!rehearsed.finished || !fits(other)) continue;
      const StepTotals totals = totals_of(other, rehearsed);
      const Alternative alternative{
          .sets = sets, .step_ms = totals.step_ms, .exposed_ms = totals.exposed_ms, .global_batch = other.global_batch};
      if (per_sequence(alternative.step_ms, alternative.global_batch) < kWorthPrinting * now_ms)
        faster.push_back(alternative);
    } catch (const Error&) {
      continue;  // this run file or layout refuses the change
    }
  }
  std::stable_sort(faster.begin(), faster.end(), [&](const Alternative& a, const Alternative& b) {
    return per_sequence(a.step_ms, a.global_batch) < per_sequence(b.step_ms, b.global_batch);
  });
  return faster;
}

}  // namespace slipstream::planner

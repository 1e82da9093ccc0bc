// SPDX-License-Identifier: Apache-2.0
// Makes the plan of a run file, with its memory and its rehearsed step.

#include "trainer/planner/forecast/planned.h"

#include <algorithm>

#include "comm/link.h"
#include "comm/rehearse/seams.h"
#include "engine/base/check.h"
#include "engine/base/units.h"
#include "engine/config/validate.h"
#include "engine/plan/memory.h"
#include "trainer/planner/forecast/extra_memory.h"
#include "trainer/planner/forecast/nccl_report.h"
#include "trainer/planner/forecast/plan_facts.h"
#include "trainer/planner/forecast/software.h"
#include "trainer/planner/forecast/unchanged_sets.h"
#include "trainer/planner/options/initial_model.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"

namespace slipstream::planner {
namespace {

constexpr int64_t kRehearsedSteps = 3;

/// Returns the GPU memory of a stage outside of the plan.
std::vector<ExtraMemory> extra_memory_of(const Planned& planned, const Job& job, const Engines& engines) {
  return planned.config.on_gpus() ? extra_memory_on_gpu(job, engines.nccl, planned.machine.ranks_per_node)
                                  : std::vector<ExtraMemory>{};
}

/// Returns `config` with buckets that grow with the data ranks, as the software's do, unless --set names their size.
ResolvedConfig with_least_bucket(const PlanRequest& request, const ResolvedConfig& config, const Software& software) {
  const int64_t least = software.bucket_bytes_per_rank * config.layout().replicas();
  if (config->overlap.bucket_size_bytes >= least ||
      std::any_of(request.sets.begin(), request.sets.end(),
                  [](const std::string& set) { return set.starts_with("overlap.bucket_size="); }))
    return config;
  RunConfig larger = *config;
  larger.overlap.bucket_size_bytes = least;
  return resolve(larger, config.facts());
}

}  // namespace

JobRequest request_of(const Planned& planned) {
  return {.config = planned.config, .machine = planned.machine, .nccl = planned.nccl};
}

Drawn draw(const PlanRequest& request) {
  const SoftwareProfile profile = software_profile(request.as);
  std::vector<std::string> sets = profile.sets;
  sets.insert(sets.end(), request.sets.begin(), request.sets.end());
  const RunConfig written = load_run(request.run_file, sets);
  require_supported(written);
  const int ranks = request.ranks;
  require_layout(written, ranks);
  const int threads = threads_of(written, ranks);
  // This host stands for one node of the cluster, with as many ranks as its cores hold.
  Machine machine = machine_of(written, request.machine, threads,
                               std::min(ranks, static_cast<int>(this_host(threads).ranks_per_node)));
  require_nodes(machine, ranks);
  machine.software = profile.software;
  const RunFacts facts{.world = ranks, .on_gpus = computes_on_gpus(written, machine), .vocab = vocab_of(written)};
  Drawn drawn{.config = with_least_bucket(request, resolve(written, facts), profile.software),
              .machine = std::move(machine),
              .machine_source = !request.machine.empty()          ? "--machine"
                                : !written.device.machine.empty() ? "device.machine"
                                                                  : "this host",
              .nccl = {},
              .nccl_table = {}};
  if (facts.on_gpus) {
    drawn.nccl_table = nccl_table_name(written.comm.nccl);
    drawn.nccl = comm::NcclTable::parse(comm::NcclTable::read_text(written.comm.nccl), written.comm.nccl);
  }
  return drawn;
}

double ms_of_a_step(int64_t total_ns) { return static_cast<double>(total_ns) / (1e6 * kRehearsedSteps); }

namespace {

/// The keys are the names of the channels.
std::map<std::string, ChannelLoad> channel_loads(const Job& job, const comm::Rehearsal& rehearsal) {
  std::map<std::string, ChannelLoad> loads;
  for (const Task& task : job.train().tasks) {
    ChannelLoad& load = loads[job.channels[task.channel].name];
    ++load.tasks;
    if (is_communication(task.op) && task.op != Op::recv)
      load.bytes += comm::wire_bytes(task.op, task.algorithm, job.mesh.group_size(job.channels[task.channel].axis),
                                     task.elems, task.dtype);
  }
  if (!rehearsal.finished) return loads;
  const comm::RankTimes& times = rehearsal.ranks.front();
  const double ns_per_ms = 1e6 * static_cast<double>(times.runs.size());
  for (ChannelId c = 0; c < job.channels.size(); ++c)
    if (const auto found = loads.find(job.channels[c].name); found != loads.end())
      found->second.busy_ms = static_cast<double>(times.busy_ns[c]) / ns_per_ms;
  for (const comm::Exposed& exposed : times.exposed)
    if (const Item& awaited = job.train()[exposed.awaited]; is_communication(awaited.op))
      loads[job.channels[awaited.channel].name].exposed_ms += static_cast<double>(exposed.time_ns) / ns_per_ms;
  return loads;
}

/// Plans `config`, which is the drawn configuration, or the same with fewer micro-batches.
Planned plan_drawn(const PlanRequest& request, const Drawn& drawn, const ResolvedConfig& config) {
  Planned planned{.request = request,
                  .config = config,
                  .machine = drawn.machine,
                  .finished = {},
                  .machine_source = drawn.machine_source,
                  .nccl = drawn.nccl,
                  .nccl_table = drawn.nccl_table,
                  .steady = {},
                  .chose_bucket_size = config->overlap.bucket_size_bytes == 0,
                  .micro_batches = drawn.config.batch().micro_batches,
                  .global_batch = drawn.config.batch().global_batch_size};
  JobRequest asked = request_of(planned);
  asked.proves = request.proves;
  asked.extra_bytes = [&](const Job& job) {
    return sum_of(extra_memory_of(planned, job, choose_engines(request_of(planned), job.mesh, job.channels)));
  };
  JobRequest whole = asked;
  whole.config = drawn.config;
  asked.schedule = choose_schedule(whole);
  asked.config = planned.config = with_bucket_size(asked);
  planned.finished = build_proved_job(asked);
  return planned;
}

/// Returns the approximate number of items of a step on all stages.
int64_t items_of(const ResolvedConfig& config) {
  const int64_t of_layer = config->parallel.tensor > 1 ? 8 + 12 * config->overlap.tensor_chunks : 8;
  return config->model.layers * config.batch().micro_batches * of_layer;
}

/// Returns the totals of the plan itself.
StepTotals planned_totals(const Planned& planned, const FinishedJob& finished, const comm::Rehearsal& rehearsal) {
  const Job& largest = largest_stage(finished);
  StepTotals totals{
      .memory_bytes = largest.buffers.total_bytes() + sum_of(extra_memory_of(planned, largest, finished.engines)),
      .wire = wire_bytes_of_step(*finished.job),
      .channels = channel_loads(*finished.job, rehearsal)};
  if (!rehearsal.finished) return totals;
  const comm::RankTimes& times = rehearsal.ranks.front();
  totals.step_ms = static_cast<double>(times.step_period_ns(1)) / 1e6;
  totals.communication_ms = ms_of_a_step(times.communication_ns);
  totals.exposed_ms = ms_of_a_step(times.exposed_ns);
  totals.bubble_ms = ms_of_a_step(times.bubble_ns);
  return totals;
}

comm::Rehearsal rehearse_job(const Planned& planned, const FinishedJob& finished) {
  const Job& job = *finished.job;
  const comm::RooflinePrice price = price_of(*planned.config, planned.machine, job.mesh);
  return comm::rehearse(job.mesh, job.channels, runs_of(finished.stages, kRehearsedSteps), price,
                        {.gate = comm::Gate::launch_order, .replayed = planned.finished.replay.taken});
}

}  // namespace

Planned make_plan(const PlanRequest& request) {
  constexpr int64_t kLongItems = 200'000;
  const Drawn drawn = draw(request);
  const SteadyState state = steady_state(drawn.config);
  if (request.whole || state.rounds == 0 || items_of(drawn.config) <= kLongItems ||
      !drawn.config->pipeline.schedule_file.empty())
    return plan_drawn(request, drawn, drawn.config);
  Planned planned = plan_drawn(request, drawn, with_micro_batches(drawn.config, state.planned));
  JobRequest asked = request_of(planned);
  asked.config = with_micro_batches(drawn.config, state.planned + state.round);
  const Job& job = *planned.finished.job;
  asked.schedule = planned.finished.schedule;
  const FinishedJob longer =
      build_job_with_update(asked, {.beside = !job.update_on_spine, .double_buffer = job.options.double_buffer});
  const comm::Rehearsal rehearsal = rehearse_job(planned, longer);
  if (!rehearsal.finished) throw PlanError("[plan] the plan ends in a deadlock: {}", rehearsal.deadlock);
  planned.steady = {.planned = state.planned,
                    .round = state.round,
                    .rounds = state.rounds,
                    .one_more = planned_totals(planned, longer, rehearsal)};
  if (state.fills) {
    const StageMemory largest = largest_of_run(drawn.config, state, planned.finished, longer);
    planned.steady.largest = largest.stage;
    planned.steady.memory_bytes =
        largest.size_bytes + sum_of(extra_memory_of(planned, *longer.stages[largest.stage], longer.engines));
  }
  return planned;
}

const Job& largest_stage(const Planned& planned) {
  if (planned.steady.memory_bytes > 0) return *planned.finished.stages[planned.steady.largest];
  return largest_stage(planned.finished);
}

std::vector<ExtraMemory> extra_memory_of_largest(const Planned& planned) {
  const Job& largest = largest_stage(planned);
  std::vector<ExtraMemory> extra = extra_memory_of(planned, largest, planned.finished.engines);
  const Steady& steady = planned.steady;
  if (steady.planned == 0) return extra;
  const int64_t planned_bytes = largest.buffers.total_bytes() + sum_of(extra);
  const auto later_bytes =
      steady.memory_bytes > 0
          ? steady.memory_bytes - planned_bytes
          : static_cast<int64_t>(steady.rounds * static_cast<double>(steady.one_more.memory_bytes - planned_bytes));
  if (later_bytes > 0) extra.push_back({"micro-batches beyond the plan", later_bytes});
  return extra;
}

int64_t most_bytes(const Planned& planned) {
  return largest_stage(planned).buffers.total_bytes() + sum_of(extra_memory_of_largest(planned));
}

bool fits(const Planned& planned) {
  return planned.machine.memory_bytes == 0 || most_bytes(planned) <= planned.machine.memory_bytes;
}

void require_fits(const Planned& planned) {
  if (fits(planned)) return;
  const Job& largest = largest_stage(planned);
  const int64_t need = most_bytes(planned), has = planned.machine.memory_bytes;
  throw ResourceError(
      "[plan] a rank{} needs {} but {} has {}. {}Use more ranks, a smaller train.micro_batch_size or a smaller "
      "model.\n{}",
      planned.finished.stages.size() > 1 ? fmt::format(" of stage {}", largest.stage()) : "", format_bytes(need),
      planned.machine.name, format_bytes(has), slots_remedy(largest, need - has),
      memory_table(largest, extra_memory_of_largest(planned)));
}

std::vector<std::string> notes_of(const Planned& planned) {
  std::vector<std::string> notes = remarks(planned.config, planned.machine, planned.finished);
  // A plan for other software has --set arguments of its own, and a short plan has another hash.
  if (!planned.request.as.empty() || planned.steady.planned > 0) return notes;
  for (std::string& note : sets_without_effect(planned.request, request_of(planned), planned.finished))
    notes.push_back(std::move(note));
  return notes;
}

CheckpointCosts checkpoint_costs_of(const Planned& planned) {
  return checkpoint_costs(planned.finished, planned.machine.ranks_per_node,
                          price_of(*planned.config, planned.machine, planned.finished.job->mesh),
                          planned.config->checkpoint);
}

KeepingCosts keeping_costs_of(const Planned& planned) {
  return keeping_costs(planned.finished, planned.config->checkpoint.peer_interval, planned.machine.ranks_per_node,
                       price_of(*planned.config, planned.machine, planned.finished.job->mesh));
}

comm::Rehearsal rehearse_step(const Planned& planned) { return rehearse_job(planned, planned.finished); }

StepTotals totals_of(const Planned& planned, const comm::Rehearsal& rehearsal) {
  StepTotals totals = planned_totals(planned, planned.finished, rehearsal);
  const Steady& steady = planned.steady;
  if (steady.planned == 0 || !rehearsal.finished) return totals;
  const auto extend = [&](auto& value, auto one_more) {
    value += static_cast<std::decay_t<decltype(value)>>(steady.rounds * static_cast<double>(one_more - value));
  };
  for (double StepTotals::*member :
       {&StepTotals::step_ms, &StepTotals::communication_ms, &StepTotals::exposed_ms, &StepTotals::bubble_ms})
    extend(totals.*member, steady.one_more.*member);
  if (steady.memory_bytes > 0)
    totals.memory_bytes = steady.memory_bytes;
  else
    extend(totals.memory_bytes, steady.one_more.memory_bytes);
  extend(totals.wire.sent, steady.one_more.wire.sent);
  extend(totals.wire.theory, steady.one_more.wire.theory);
  for (auto& [name, load] : totals.channels)
    if (const auto more = steady.one_more.channels.find(name); more != steady.one_more.channels.end()) {
      extend(load.tasks, more->second.tasks);
      extend(load.bytes, more->second.bytes);
      extend(load.busy_ms, more->second.busy_ms);
      extend(load.exposed_ms, more->second.exposed_ms);
    }
  totals.bubble_ms = std::max(0.0, totals.bubble_ms);
  return totals;
}

}  // namespace slipstream::planner

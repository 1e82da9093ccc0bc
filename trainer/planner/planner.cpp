// SPDX-License-Identifier: Apache-2.0
// Builds the job of every stage, orders the plans, and chooses the stream of the update and the launch mode.

#include "trainer/planner/planner.h"

#include <fnmatch.h>

#include <algorithm>
#include <limits>
#include <set>

#include <fmt/ranges.h>

#include "comm/link.h"
#include "comm/nccl/launch_order.h"
#include "comm/rehearse/seams.h"
#include "comm/wiring.h"
#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/format.h"
#include "engine/base/parallel.h"
#include "engine/config/validate.h"
#include "engine/plan/keeping.h"
#include "engine/plan/update_shards.h"
#include "trainer/planner/minimum_memory.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/stage_jobs.h"
#include "trainer/planner/stage_times.h"
#include "trainer/planner/steady_state.h"

namespace slipstream::planner {
namespace {

/// Stages that end early reduce a whole chunk at once: this gives fewer, larger messages, and none during their last
/// backward pass. The exceptions are encoded gradients, whose buffer is as wide as a bucket, and shards, whose
/// parameters return bucket by bucket.
void bucket_the_critical_path_only(PlanOptions options, const StageJobs& builder, const comm::RooflinePrice& price,
                                   int64_t transfer_ns, std::vector<std::shared_ptr<Job>>& jobs) {
  const int ranks = options.sizes.replicas();
  if (jobs.size() == 1 || ranks == 1 || options.sharding.states || options.reduce_mode != ReduceMode::bucketed ||
      options.reduce_wire != DType::f32)
    return;
  const Played played = played_schedule({jobs.begin(), jobs.end()}, price, transfer_ns);
  for (size_t stage = 0; stage < jobs.size(); ++stage) {
    const Job& job = *jobs[stage];
    options.reduced_at_once = off_critical_path(options.schedule, played, static_cast<int>(stage), [&](int chunk) {
      const auto [begin, end] = job.backward_positions(chunk);
      int64_t elems = 0;
      for (const PlacedPart& placed : job.layout.parts)
        if (begin <= placed.ready_position && placed.ready_position < end) elems += placed.part.elems;
      const comm::WireCost wire =
          price.wire(Op::all_reduce, options.algorithm, Axis::replica, ranks, elems, DType::f32);
      return wire.latency_ns + wire.wire_ns +
             static_cast<int64_t>(1e9 * price.seconds({2 * elems, 4 * elems}));  // includes the sum of squares
    });
    const bool any =
        std::find(options.reduced_at_once.begin(), options.reduced_at_once.end(), 1) != options.reduced_at_once.end();
    if (any) jobs[stage] = builder.build(options, static_cast<int>(stage));
  }
}

/// A step of several days indicates a wrong unit, and its virtual time nearly overflows.
void require_travels_within_a_day(const std::vector<std::shared_ptr<Job>>& jobs, const comm::RooflinePrice& price,
                                  bool emulated) {
  constexpr double kDay_s = 86400;
  for (const auto& job : jobs) {
    double bytes = 0, seconds = 0, slowest = 0;
    for (const Task& task : job->train().tasks) {
      if (!is_communication(task.op)) continue;
      const Axis axis = job->channels[task.channel].axis;
      const double rate = price.link(axis).bytes_per_second;
      const auto sent = static_cast<double>(
          comm::wire_bytes(task.op, task.algorithm, job->mesh.group_size(axis), task.elems, task.dtype));
      if (rate <= 0 || sent <= 0) continue;
      bytes += sent;
      seconds += sent / rate;
      slowest = slowest > 0 ? std::min(slowest, rate) : rate;
    }
    if (seconds > kDay_s)
      throw ConfigError("[plan] the {} that a rank sends in a step need {:.3g} days at {}/s. Raise {}.",
                        format_bytes(static_cast<int64_t>(bytes)), seconds / kDay_s,
                        format_bytes(static_cast<int64_t>(slowest)),
                        emulated ? "comm.emulate.bandwidth" : "the rates of the machine's links");
  }
}

/// Returns true if a rank has enough memory for this job.
bool fits(const JobRequest& request, const Job& job) {
  return job.buffers.total_bytes() + (request.extra_bytes ? request.extra_bytes(job) : 0) <=
         request.machine.memory_bytes;
}

/// Adds the slots that stages need so that transfers cannot wait for each other in a circle. Without them, a schedule
/// from a file may let both ends of a wire hold all of their slots until the other end has a free one. Changes
/// `options` and `jobs`.
void add_slots(const JobRequest& request, PlanOptions& options, const StageJobs& builder,
               const comm::RooflinePrice& price, std::vector<std::shared_ptr<Job>>& jobs) {
  if (request.config->pipeline.schedule_file.empty() || jobs.size() == 1) return;
  const auto ends = [&] {
    std::vector<comm::Stage> stages;
    for (const auto& job : jobs) stages.push_back({&job->train(), &job->buffers});
    return comm::can_end(stages, jobs[0]->mesh, jobs[0]->channels, price);
  };
  // With a slot for every micro-batch of every chunk, no transfer waits for a slot.
  const int most = options.schedule.shape.micro_batches * options.schedule.shape.virtual_stages;
  while (!ends() && options.spare_slots < most) {
    ++options.spare_slots;
    jobs = builder.build_all(options);
  }
}

/// Builds jobs without plan order, and the parts of `finished` that need no order.
std::vector<std::shared_ptr<Job>> draft(const JobRequest& request, const UpdatePlacement& update,
                                        FinishedJob& finished) {
  const slipstream::Batch& batch = request.config.batch();
  PlanOptions options = plan_options(request, update);
  models::ModelOptions sizes = model_options(request);
  check_minimum_memory(sizes, options, request.machine);
  const Mesh mesh(options.sizes, options.mesh_order);
  const LayerPartition partition = partition_layers(request, sizes, mesh);
  const ScheduleChoice chosen = choose_schedule(request);
  options.schedule = schedule_of(request.config, chosen);
  options.layers = partition.layers;
  sizes.split_backward = options.schedule.splits_backward;
  sizes.takes_turns = options.schedule.takes_turns;
  sizes.cuts = cuts_of(options.layers);
  sizes.ends_apart = options.schedule.placement.ends_apart();
  finished.micro_batches = batch.micro_batches;
  finished.global_batch = batch.global_batch_size;
  // Whole gradients are reduced once per step, in the summation order of stage 0. Shards are reduced in every
  // micro-batch.
  options.accumulate_unsharded = options.sharding.gradients && !options.sharding.parameters &&
                                 batch.micro_batches > 1 && request.machine.memory_bytes > 0;
  const StageJobs builder(request, sizes, options);
  std::vector<std::shared_ptr<Job>> jobs = builder.build_all(options);
  const comm::RooflinePrice price = price_of(*request.config, request.machine, mesh);
  add_slots(request, options, builder, price, jobs);
  if (options.accumulate_unsharded &&
      !std::all_of(jobs.begin(), jobs.end(), [&](const auto& job) { return fits(request, *job); })) {
    options.accumulate_unsharded = false;
    jobs = builder.build_all(options);
  }
  require_travels_within_a_day(jobs, price, request.config->comm.emulate.bandwidth_bytes_per_second > 0);
  if (chosen.reduces_at_once) bucket_the_critical_path_only(options, builder, price, partition.transfer_ns, jobs);
  if (request.config->checkpoint.peer_interval > 0) {
    std::vector<Job*> stages;
    for (const auto& job : jobs) stages.push_back(job.get());
    add_keeping(stages, holder_offset(mesh.world(), request.machine.ranks_per_node));
  }
  finished.transfer_ns = partition.transfer_ns;
  finished.schedule = chosen;
  finished.engines = choose_engines(request, mesh, jobs[0]->channels);
  for (const auto& job : jobs) set_engines(finished.engines, *job);
  for (const auto& job : jobs) finished.stages.push_back(job);
  finished.job = jobs[static_cast<size_t>(mesh.coordinates(request.rank).pipeline)];
  return jobs;
}

/// Calls visit(group, tensor) for all tensors of the model.
template <typename Visit>
void for_tensors(const std::vector<std::shared_ptr<Job>>& stages, const Visit& visit) {
  for (const auto& job : stages)
    for (const ParameterGroup& group : job->groups)
      for (const uint32_t p : group.parameters)
        for (const NamedTensor& tensor : job->model.parameters[p].tensors) visit(group, tensor);
}

/// Requires that every row of optimizer.multipliers holds for a tensor, and that no row matches a tensor that is
/// updated as a matrix.
void require_matches(const std::vector<std::shared_ptr<Job>>& stages) {
  const PlanOptions& options = stages[0]->options;
  for (const UpdateMultipliers& row : options.multipliers) {
    std::set<const UpdateMultipliers*> holding;  // for the tensors that this row matches
    for_tensors(stages, [&](const ParameterGroup& group, const NamedTensor& tensor) {
      if (::fnmatch(row.pattern.c_str(), tensor.name.c_str(), 0) != 0) return;
      holding.insert(multipliers_of(options, tensor.name));
      if (group.optimizer->granularity == Granularity::matrix)
        throw ConfigError(
            "optimizer.multipliers: the pattern {} matches {}, a matrix that {} updates. Restrict the pattern to the "
            "other parameters, or use optimizer.name = \"adamw\".",
            files::shown(row.pattern), tensor.name, name_of(group.optimizer->name));
    });
    if (holding.empty())
      throw ConfigError(
          "optimizer.multipliers: the pattern {} matches no tensor of the model. Use names such as {}, with * for any "
          "characters.",
          files::shown(row.pattern), stages[0]->model.parameters.at(0).name());
    if (holding.contains(&row)) continue;
    const auto number = [&](const UpdateMultipliers* each) { return each - options.multipliers.data() + 1; };
    std::vector<std::string> earlier;
    for (const UpdateMultipliers* each : holding)
      earlier.push_back(fmt::format("row {} ({})", number(each), files::shown(each->pattern)));
    throw ConfigError(
        "optimizer.multipliers: row {} ({}) has no effect because all its tensors match {} first. Remove row {}, or "
        "move it up.",
        number(&row), files::shown(row.pattern), fmt::join(earlier, " or "), number(&row));
  }
}

/// Orders drafted jobs.
void finish_draft(const JobRequest& request, const std::vector<std::shared_ptr<Job>>& jobs, bool proves,
                  FinishedJob& finished) {
  const comm::RooflinePrice price = price_of(*request.config, request.machine, jobs[0]->mesh);
  comm::MeasuredPrice measured_ns(price);
  for (const auto& job : jobs)
    if (request.spine_ns) {
      std::vector<int64_t> item_ns = request.spine_ns(*job);
      item_ns.resize(job->train().size(), -1);
      measured_ns.set(job->train(), std::move(item_ns));
    }
  require_matches(jobs);
  finished.proof = finish_plans(jobs, measured_ns, proves);
  if (proves && price.multiprocessors() > 0 && finished.engines.occupy_multiprocessors()) {
    const comm::Rehearsal played = comm::rehearse(jobs[0]->mesh, jobs[0]->channels, runs_of(finished.stages, 3), price,
                                                  {.gate = comm::Gate::launch_order, .splits_idle = false});
    if (played.finished) plan_products(jobs, played, price.multiprocessors(), finished.engines);
  }
}

FinishedJob finish_job(const JobRequest& request, const UpdatePlacement& update, bool proves) {
  FinishedJob finished;
  const std::vector<std::shared_ptr<Job>> jobs = draft(request, update, finished);
  finish_draft(request, jobs, proves, finished);
  return finished;
}

/// Returns true if NCCL runs this job's operations one by one across all channels.
bool serialises(const JobRequest& request, const Job& job, bool captured) {
  const comm::Wiring wiring = comm::wire_up(job);
  const auto several = std::count_if(wiring.connections.begin(), wiring.connections.end(),
                                     [&](Axis axis) { return axis != Axis::hosts && job.mesh.group_size(axis) > 1; });
  return several > 1 && comm::nccl_serialises(request.driver, captured);
}

/// Returns the works that a step launches on the stage with the most launches.
int64_t launches_of_step(const FinishedJob& finished) {
  int64_t most = 0;
  for (const auto& job : finished.stages) {
    int64_t launches = std::ssize(job->train().tasks);
    for (const SpineItem& item : job->train().spine)
      launches += item.op == Op::compute ? std::ssize(job->model.pieces[item.piece].works) : 1;
    most = std::max(most, launches);
  }
  return most;
}

}  // namespace

const Job& largest_stage(const FinishedJob& finished) {
  const Job* largest = nullptr;
  int64_t most = -1;
  for (const auto& job : finished.stages)
    if (const int64_t bytes = job->buffers.total_bytes(); bytes > most) most = bytes, largest = job.get();
  return *largest;
}

int64_t most_bytes(const FinishedJob& finished) { return largest_stage(finished).buffers.total_bytes(); }

FinishedJob build_finished_job(const JobRequest& request) {
  FinishedJob finished = build_proved_job(request);
  if (request.proves) require_holds(finished.proof);
  return finished;
}

ResolvedConfig with_bucket_size(const JobRequest& request) {
  const RunConfig& run = *request.config;
  if (run.overlap.bucket_size_bytes > 0) return request.config;
  RunConfig chosen = run;
  chosen.overlap.bucket_size_bytes = bucket_bytes_of(run);
  const MeshSizes& layout = request.config.layout();
  if (layout.replicas() == 1 || run.zero.sharding().gradients || run.overlap.grad_reduce != ReduceMode::bucketed)
    return resolve(chosen, request.config.facts());
  const int64_t micro_batches = steady_state(request.config).planned;  // buckets travel once in a step
  const ScheduleChoice schedule = choose_schedule(request);
  int64_t best_ns = std::numeric_limits<int64_t>::max(), best_bytes = chosen.overlap.bucket_size_bytes;
  for (const int64_t size_bytes : {4 * kMiB, 25 * kMiB, 100 * kMiB, 400 * kMiB}) {
    if (size_bytes < run.overlap.first_bucket_size_bytes) continue;
    chosen.overlap.bucket_size_bytes = size_bytes;
    JobRequest asked = request;
    asked.config = with_micro_batches(resolve(chosen, request.config.facts()), micro_batches);
    asked.spine_ns = nullptr;
    asked.schedule = schedule;
    const int64_t period_ns = step_period_ns(asked, build_job_with_update(asked, {}), false);
    if (period_ns < 0 || period_ns >= best_ns) continue;
    best_ns = period_ns;
    best_bytes = size_bytes;
  }
  chosen.overlap.bucket_size_bytes = best_bytes;
  return resolve(chosen, request.config.facts());
}

FinishedJob build_proved_job(const JobRequest& given) {
  JobRequest request = given;
  request.schedule = choose_schedule(given);
  request.config = with_bucket_size(request);
  const Choice copies = request.config->optimizer.double_buffer, graph = request.config->device.graph;
  const bool two_asked = copies == Choice::yes;
  // On a CPU's compute stream, an update always follows every reader of the weights (docs/notes/0002, 0014).
  FinishedJob first = finish_job(request, {two_asked, two_asked}, request.proves);
  if (!request.config.on_gpus()) return first;
  struct UpdateCandidate {
    UpdatePlacement update;
    int64_t graph_ns = -1, task_by_task_ns = -1, launches = 0;
  };
  std::vector<UpdateCandidate> candidates{{{two_asked, two_asked}}};
  std::vector<ComparedUpdate> compared;
  if (!two_asked && !is_deep(request)) candidates.push_back({{true, false}});
  // In stage 3, no update waits for a reader.
  if (copies == Choice::automatic && !first.job->sharding().parameters && !is_deep(request))
    candidates.push_back({{true, true}});
  const UpdateCandidate *by_graph = candidates.data(), *by_task = candidates.data();
  // Works beside transfers are priced in whole nanoseconds, so a difference below 0.01 % is a tie.
  const auto shorter = [](int64_t a_ns, int64_t b_ns) { return a_ns < b_ns - b_ns / 10'000; };
  for (UpdateCandidate& candidate : candidates) {
    const FinishedJob finished = &candidate == candidates.data() ? first : finish_job(request, candidate.update, false);
    if (&candidate != candidates.data() && candidate.update.double_buffer &&
        !std::all_of(finished.stages.begin(), finished.stages.end(),
                     [&](const auto& job) { return fits(request, *job); }))
      continue;
    const std::vector<comm::RankRuns> runs = runs_of(finished.stages, 3);
    candidate.graph_ns = step_period_ns(request, finished, runs, true);
    candidate.task_by_task_ns = step_period_ns(request, finished, runs, false);
    candidate.launches = launches_of_step(finished);
    compared.push_back({candidate.update.beside, candidate.update.double_buffer, most_bytes(finished),
                        candidate.graph_ns, candidate.task_by_task_ns});
    if (candidate.task_by_task_ns < 0) continue;
    if (shorter(candidate.graph_ns, by_graph->graph_ns)) by_graph = &candidate;
    if (shorter(candidate.task_by_task_ns, by_task->task_by_task_ns)) by_task = &candidate;
  }
  Replay replay{.graph_ns = by_graph->graph_ns,
                .task_by_task_ns = by_task->task_by_task_ns,
                .launches = by_task->launches,
                .launch_ns = request.machine.launch_ns,
                .serialised_by = serialises(request, *first.job, true) ? request.driver : 0};
  replay.taken = graph == Choice::yes || (graph == Choice::automatic && !replay.is_too_large() &&
                                          replay.graph_ns - replay.task_by_task_ns <= replay.launches_ns());
  const UpdateCandidate& best = replay.taken ? *by_graph : *by_task;
  FinishedJob finished =
      &best == candidates.data() ? std::move(first) : finish_job(request, best.update, request.proves);
  finished.replay = replay;
  finished.compared = std::move(compared);
  return finished;
}

FinishedJob build_job_with_update(const JobRequest& request, const UpdatePlacement& update) {
  return finish_job(request, update, false);
}

TriedJob try_job(const JobRequest& request) {
  TriedJob tried;
  const std::vector<std::shared_ptr<Job>> jobs = draft(request, {}, tried.finished);
  for (const auto& job : jobs)
    tried.memory_bytes = std::max(tried.memory_bytes,
                                  job->buffers.total_bytes() + (request.extra_bytes ? request.extra_bytes(*job) : 0));
  if (request.machine.memory_bytes > 0 && tried.memory_bytes > request.machine.memory_bytes) {
    tried.finished = {};
    return tried;
  }
  finish_draft(request, jobs, false, tried.finished);
  return tried;
}

FinishedJob build_drafted_job(const JobRequest& request) {
  FinishedJob drafted;
  const bool two_asked = request.config->optimizer.double_buffer == Choice::yes;
  draft(request, {two_asked, two_asked}, drafted);
  return drafted;
}

Played played_schedule(const std::vector<std::shared_ptr<const Job>>& stages, const comm::RooflinePrice& price,
                       int64_t transfer_ns) {
  return play(stages[0]->schedule, pass_times(stages, {}, price, transfer_ns));
}

std::vector<comm::RankRuns> runs_of(const std::vector<std::shared_ptr<const Job>>& stages, int64_t steps,
                                    const std::function<bool(PlanKind kind, int64_t n)>& asks) {
  std::vector<comm::RankRuns> ranks(stages.size());
  for_each_index(stages.size(), threads_for(stages.size()), [&](size_t s) {
    const Job& job = *stages[s];
    std::vector<const Plan*> plans;
    for (int64_t n = 0; n < steps; ++n)
      for (size_t row : job.calendar().step(n, [&](size_t asked) { return asks(job.plans[asked].kind, n); }))
        plans.push_back(&job.plans[row].plan);
    ranks[s] = {.rank = job.mesh.rank({.pipeline = static_cast<int>(s)}),
                .runs = plans,
                .seams = comm::link_all(plans, job.channels)};
  });
  return ranks;
}

int64_t step_period_ns(const JobRequest& request, const FinishedJob& finished, bool replayed) {
  return step_period_ns(request, finished, runs_of(finished.stages, 3), replayed);
}

int64_t step_period_ns(const JobRequest& request, const FinishedJob& finished, const std::vector<comm::RankRuns>& runs,
                       bool replayed) {
  const comm::RooflinePrice price = price_of(*request.config, request.machine, finished.job->mesh);
  return comm::rehearsed_period_ns(
      finished.job->mesh, finished.job->channels, runs, price,
      {.gate = serialises(request, *finished.job, replayed) ? comm::Gate::serial : comm::Gate::launch_order,
       .replayed = replayed},
      1);
}

double rehearsed_step_ms(const std::vector<std::shared_ptr<const Job>>& stages,
                         const std::vector<std::vector<int64_t>>& item_ns, const comm::Price& otherwise,
                         bool replayed) {
  comm::MeasuredPrice price(otherwise);
  for (size_t s = 0; s < stages.size(); ++s) {
    std::vector<int64_t> local = item_ns[s];
    local.resize(stages[s]->train().size());  // timelines number the items of other plans after them
    for (ItemId i = 0; i < stages[s]->train().size(); ++i)
      if (is_communication(stages[s]->train()[i].op)) local[i] = -1;
    for (const PlanRow& row : stages[s]->plans)
      if (row.kind == PlanKind::train) price.set(row.plan, local);
  }
  const int64_t period_ns = comm::rehearsed_period_ns(stages[0]->mesh, stages[0]->channels, runs_of(stages, 3), price,
                                                      {.replayed = replayed}, 1);
  return period_ns < 0 ? -1 : static_cast<double>(period_ns) / 1e6;
}

}  // namespace slipstream::planner

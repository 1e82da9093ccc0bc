// SPDX-License-Identifier: Apache-2.0
// Formats sentences and tables about finished jobs, and makes no decisions.

#include "trainer/planner/forecast/plan_facts.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/ranges.h>

#include "comm/link.h"
#include "engine/base/format.h"
#include "engine/base/plural.h"
#include "engine/base/units.h"
#include "engine/plan/build_job.h"
#include "engine/plan/memory.h"
#include "trainer/planner/options/plan_options.h"

namespace slipstream::planner {

std::string plan_listing(const Job& job) {
  std::string text = fmt::format("{:<14}{:<16}{:<48}{:>12}  {:<10}{:>12}  {}\n", "channel", "operation", "item",
                                 "elements", "dtype", "sent", "after");
  for (ItemId id : job.train().order) {
    const Item& item = job.train()[id];
    std::string name = item.name, elems, dtype, sent, after;
    if (job.train().is_spine(id)) {
      const SpineItem& spine = job.train().spine[id];
      if (job.buffers.micro_batches > 1) name += fmt::format(" of micro-batch {}", spine.micro_batch);
    } else {
      const Task& task = job.train().task(id);
      if (task.elems > 0) elems = fmt::format("{}", task.elems), dtype = name_of(task.dtype);
      if (is_communication(task.op))
        sent = fmt::format(
            "{}", comm::wire_bytes(task.op, task.algorithm, job.mesh.group_size(job.channels[task.channel].axis),
                                   task.elems, task.dtype));
    }
    for (const Point& point : item.after)
      after += fmt::format("{}{}", after.empty() ? "" : ", ", job.train()[point.item].name);
    text += fmt::format("{:<14}{:<16}{:<48}{:>12}  {:<10}{:>12}  {}\n", job.channels[item.channel].name,
                        name_of(item.op), name, elems, dtype, sent, after);
  }
  return text;
}

int64_t saved_by_sequence_parallelism(const JobRequest& request, const FinishedJob& finished) {
  if (!request.config->parallel.sequence_parallel) return 0;
  RunConfig whole = *request.config;
  whole.parallel.sequence_parallel = false;
  JobRequest asked = request;
  asked.config = resolve(whole, request.config.facts());
  const FinishedJob without = build_drafted_job(asked);
  int64_t saved_bytes = 0;
  for (size_t s = 0; s < without.stages.size(); ++s)
    saved_bytes =
        std::max(saved_bytes, without.stages[s]->buffers.total_bytes() - finished.stages[s]->buffers.total_bytes());
  return saved_bytes;
}

namespace {

/// Returns the states of the rank with the most, and ZeRO's formula for its parameters.
ZeroMemory states_of(const FinishedJob& drafted, int stage, int ranks) {
  ZeroMemory most;
  const Sharding sharding = sharding_of_stage(stage);
  for (const auto& each : drafted.stages) {
    const Job& job = *each;
    ZeroMemory row{.stage = stage, .ranks = ranks};
    for (Owner owner : {Owner::parameters, Owner::gradients, Owner::optimizer})
      row.planned_bytes += job.buffers.bytes(owner);
    for (size_t b = 0; b < job.storage.size(); ++b)
      if (!job.layout.buckets[b].unit)
        row.outside_bytes += (sharding.gradients ? job.storage[b].gradients.size_bytes : 0) +
                             (sharding.parameters ? job.storage[b].values.size_bytes : 0);
    for (const ParameterGroup& group : job.groups) {
      int64_t elems = 0;
      for (uint32_t p : group.parameters) elems += job.model.parameters[p].elems;
      const StateBytes states = state_bytes(job.model.dtype, sharding, *group.optimizer);
      row.formula_bytes +=
          elems * states.whole + elems * states.shared / job.mesh.group_size(group.placement.sums_over);
    }
    if (row.planned_bytes > most.planned_bytes) most = row;
  }
  return most;
}

}  // namespace

std::vector<ZeroMemory> zero_memory(const JobRequest& request) {
  std::vector<ZeroMemory> table;
  RunConfig config = *request.config;
  if (config.parallel.expert > 1) return table;  // the paper has no ranks that divide parameters
  config.zero = Zero{};  // as in the paper: parameters travel in the compute type, and none persists
  config.comm.error_feedback = false;
  config.overlap.split_tied_embedding = false;  // its second share arrives from all ranks and is not a state
  config.optimizer.double_buffer = Choice::no;
  config.parallel.data = -1;
  // One micro-batch is enough. States depend on the schedule only by where it has embedding and head: if these are on
  // the first and the last stage, the chunks of a stage become one. On the same stage, they become the two of a V.
  const StagePlacement placement = stage_placement(request.config);
  config.pipeline.schedule_file.clear();
  if (const auto stages = static_cast<int>(config.parallel.pipeline); stages > 1) {
    const bool folds = !placement.ends_apart();
    const std::vector<int64_t> parts = std::exchange(config.pipeline.layers, {});
    if (!parts.empty()) config.pipeline.layers.resize(static_cast<size_t>(folds ? 2 * stages : stages), 0);
    for (int part = 0; part < std::ssize(parts); ++part) {
      const int stage = placement.stage_of(part);
      const int to = folds && 2 * part >= placement.parts() ? 2 * stages - 1 - stage : stage;
      config.pipeline.layers[static_cast<size_t>(to)] += parts[static_cast<size_t>(part)];
    }
    config.pipeline.virtual_stages = folds ? 2 : 1;
    config.pipeline.schedule = folds ? ScheduleKind::zb_v : ScheduleKind::gpipe;
  }
  const int others = request.config.world() / request.config.layout().data;
  const int last_stage = updates_matrices(config.optimizer.name) ? 1 : 3;  // the other stages divide matrices
  for (int stage = 0; stage <= last_stage; ++stage)
    for (int ranks : {2, 4, 8, 64}) {
      config.zero.stage = stage;
      config.train.global_batch_size = config.train.micro_batch_size * ranks;
      JobRequest asked{.config = resolve(config, {.world = ranks * others}), .machine = request.machine};
      asked.machine.memory_bytes = 0;  // gradients of stage 2 are then sharded for any memory
      asked.schedule = ScheduleChoice{};
      table.push_back(states_of(build_drafted_job(asked), stage, ranks));
    }
  return table;
}

std::vector<UpdateOption> update_options(const JobRequest& request, const FinishedJob& planned,
                                         double planned_step_ms) {
  std::vector<UpdateOption> places;
  const Job& chosen = *planned.job;
  for (const char* name : {"on the compute stream", "on a stream of its own", "double-buffered"}) {
    const bool beside = !places.empty(), twice = places.size() == 2;
    if (twice && chosen.sharding().parameters) break;
    if (chosen.options.double_buffer == twice && chosen.update_on_spine == !beside) {
      places.push_back(
          {.name = name, .memory_bytes = most_bytes(planned), .step_ms = planned_step_ms, .is_planned = true});
      continue;
    }
    const auto known = std::find_if(planned.compared.begin(), planned.compared.end(), [&](const ComparedUpdate& other) {
      return other.beside == beside && other.double_buffer == twice;
    });
    if (known != planned.compared.end()) {
      const int64_t step_ns = planned.replay.taken ? known->graph_ns : known->task_by_task_ns;
      places.push_back({.name = name,
                        .memory_bytes = known->memory_bytes,
                        .step_ms = std::max(0.0, static_cast<double>(step_ns) / 1e6)});
      continue;
    }
    const FinishedJob finished = build_job_with_update(request, {beside, twice});
    places.push_back(
        {.name = name,
         .memory_bytes = most_bytes(finished),
         .step_ms = std::max(0.0, static_cast<double>(step_period_ns(request, finished, planned.replay.taken)) / 1e6)});
  }
  return places;
}

namespace {

/// Returns the bytes of gradients that a rank sends in a step.
int64_t gradient_bytes(const Job& job) {
  int64_t sent = 0;
  for (const Task& task : job.train().tasks) {
    const Role role = job.channels[task.channel].role;
    const bool sums = task.op == Op::all_reduce || task.op == Op::reduce_scatter;
    const bool exchanges = (task.op == Op::all_to_all || task.op == Op::all_gather) && task.dtype == DType::bf16;
    if ((role == Role::reduce || role == Role::reduce_across) && (sums || exchanges))
      sent += comm::wire_bytes(task.op, task.algorithm, job.mesh.group_size(job.channels[task.channel].axis),
                               task.elems, task.dtype);
  }
  return sent;
}

}  // namespace

std::vector<std::string> remarks(const ResolvedConfig& resolved, const Machine& machine, const FinishedJob& finished) {
  std::vector<std::string> lines = resolved.without_effect();
  const RunConfig& config = *resolved;
  const Job& job = *finished.job;
  if (config.optimizer.warmup_steps > config.train.steps)
    lines.push_back(
        fmt::format("optimizer.warmup_steps = {} exceeds train.steps = {}, so the learning rate never reaches "
                    "optimizer.learning_rate",
                    config.optimizer.warmup_steps, config.train.steps));
  const Sharding asked = job.options.sharding, sharding = job.sharding();
  if (asked.gradients && !asked.parameters && sharding.states && finished.micro_batches > 1)
    lines.push_back(!sharding.gradients
                        ? fmt::format("zero.stage 2: {} micro-batches accumulate in whole gradients, which fit "
                                      "in memory, and are reduced once (same bits as stage 0)",
                                      finished.micro_batches)
                        : fmt::format("zero.stage 2: {} micro-batches are reduced one by one and accumulate in "
                                      "shards, because {} (rounding order differs from stage 0)",
                                      finished.micro_batches,
                                      machine.memory_bytes > 0 ? fmt::format("whole gradients do not fit in {}",
                                                                             format_bytes(machine.memory_bytes))
                                                               : "the memory of a rank is unknown"));
  if (const PipelineSchedule& schedule = job.schedule; schedule.shape.micro_batches < schedule.shape.stages) {
    const ScheduleShape& shape = schedule.shape;
    // Stages of equal duration, with a backward pass that takes twice as long as the forward pass, and without hops.
    const Played played =
        play(schedule, {.action_ns =
                            [&](int, const Action& action) {
                              return action.pass == Pass::backward && !schedule.splits_backward ? 2 : 1;
                            },
                        .transfer_ns = {}});
    lines.push_back(fmt::format(
        "{} micro-batch{} too few to fill {} stages: stages of equal duration idle for {:.0f} % of their compute time. "
        "Raise train.global_batch_size or lower train.micro_batch_size",
        shape.micro_batches, shape.micro_batches == 1 ? " is" : "es are", shape.stages, 100 * played.bubble()));
  }
  if (job.mesh.crosses_nodes(Axis::tensor, machine.ranks_per_node) &&
      config.comm.emulate.bandwidth_bytes_per_second == 0)
    lines.push_back(
        fmt::format("tensor groups communicate in every layer and cross nodes of {}; use a parallel.tensor that "
                    "divides {}, and put tp first in parallel.order",
                    counted(machine.ranks_per_node, "rank"), machine.ranks_per_node));
  if (job.model.dtype == DType::bf16 && !job.options.reduce_wire.is_scaled() && job.reduces()) {
    const int64_t sent = gradient_bytes(job);
    const bool rounds = job.options.reduce_wire == DType::bf16;
    lines.push_back(
        fmt::format("gradients of a bfloat16 model travel as comm.grad_dtype = \"{}\", {} from a rank in a "
                    "step; \"{}\" would send {} and {}",
                    rounds ? "bfloat16" : "float32", format_bytes(sent), rounds ? "float32" : "bfloat16",
                    format_bytes(rounds ? 2 * sent : sent / 2), rounds ? "round nothing" : "round them to 8 bits"));
  }
  const std::vector<Bucket>& buckets = job.layout.buckets;
  const std::vector<ParameterSpec>& parameters = job.model.parameters;
  const auto larger = std::count_if(parameters.begin(), parameters.end(),
                                    [&](const ParameterSpec& p) { return 4 * p.elems > job.options.bucket_bytes; });
  if (sharding.gradients && std::any_of(buckets.begin(), buckets.end(), [&](const Bucket& b) {
        return b.unit && 4 * b.elems > job.options.bucket_bytes;
      }))
    lines.push_back(fmt::format(
        "zero.stage {}: each layer is one bucket; overlap.bucket_size = {} applies only to the other parameters",
        config.zero.stage, format_bytes(job.options.bucket_bytes)));
  else if (larger > 0 && job.options.reduce_mode == ReduceMode::bucketed && !sharding.gradients && job.reduces())
    lines.push_back(
        fmt::format("{} of {} parameters {} larger than overlap.bucket_size = {} and {} in one bucket with the "
                    "parameters before {}",
                    larger, parameters.size(), larger == 1 ? "is" : "are", format_bytes(job.options.bucket_bytes),
                    larger == 1 ? "travels" : "each travel", larger == 1 ? "it" : "them"));
  return lines;
}

WireBytes wire_bytes_of_step(const Job& job) {
  WireBytes bytes;
  for (const Task& task : job.train().tasks)
    if (is_communication(task.op) && carries_states(job.channels[task.channel].role))
      bytes.sent += comm::wire_bytes(task.op, task.algorithm, job.mesh.group_size(job.channels[task.channel].axis),
                                     task.elems, task.dtype);
  // Transfers over the same ranks round together.
  std::map<Axis, int64_t> elems_of;               // by the axis of sums
  std::map<Axis, const Placement*> placement_of;  // the same for all groups with that axis
  for (const ParameterGroup& group : job.groups) {
    placement_of[group.placement.sums_over] = &group.placement;
    for (uint32_t p : group.parameters)
      for (const NamedTensor& tensor : job.model.parameters[p].tensors)
        if (!job.model.parameters[p].is_copy) elems_of[group.placement.sums_over] += tensor.elems_of_whole();
  }
  std::map<Axis, int64_t> of_axis;
  for (const auto& [sums_over, placement] : placement_of)
    for (const Transfer& transfer : placement->transfers(job.mesh, job.buffers.micro_batches)) {
      const int64_t elems = elems_of[sums_over] / (transfer.of_shard ? placement->shards(job.mesh) : 1);
      of_axis[transfer.axis] +=
          transfer.times * (transfer.op == Op::all_reduce ? 2 : 1) * encoded_bytes(elems, transfer.wire);
    }
  for (const auto& [axis, sent] : of_axis) {
    const int64_t ranks = job.mesh.group_size(axis);
    bytes.theory += sent * (ranks - 1) / ranks;
  }
  return bytes;
}

Json layout_json(const MeshSizes& sizes) {
  Json json = Json::object();
  for (const MeshAxis& row : kMeshAxes) json[name_of(row.axis)] = sizes.*row.size;
  return json;
}

std::string experts_line(const ResolvedConfig& config) {
  const int ranks = config.layout().expert;
  if (ranks == 1) return "";
  const bool gathers = config->parallel.expert_exchange == ExpertExchange::gather;
  const char* how =
      gathers            ? config.on_gpus() ? "every rank gathers the tokens of all of them, because NCCL cannot read "
                                              "the counts of rows"
                                            : "every rank gathers the tokens of all of them"
      : config.on_gpus() ? "rows travel to the ranks of their experts by counts that NCCL cannot read, so "
                           "that only the plan exists"
                         : "rows travel to the ranks of their experts by counts that the transport reads";
  return fmt::format("{} ranks with {} of {} experts each; parallel.expert_exchange = \"{}\": {}", ranks,
                     config->model.experts.count / ranks, config->model.experts.count,
                     name_of(config->parallel.expert_exchange), how);
}

std::string schedule_line(const RunConfig& config, const std::vector<std::shared_ptr<const Job>>& stages,
                          const Played& played) {
  const ScheduleShape& shape = stages[0]->schedule.shape;
  std::string layers;
  for (int part : stages[0]->layers) layers += fmt::format("{}{}", layers.empty() ? "" : " + ", part);
  std::string line = fmt::format(
      "pipeline: {} over {} stages{} of {} layers, {} micro-batch{}: the busiest stage idles {:.0f}% of its compute "
      "time, transfers included",
      schedule_name(config), shape.stages, shape.virtual_stages > 1 ? fmt::format(" x {}", shape.virtual_stages) : "",
      layers, shape.micro_batches, shape.micro_batches == 1 ? "" : "es", 100 * played.bubble());
  if (shape.hides_transfers) line += ", with more micro-batches in flight so that compute hides transfers";
  if (!shape.lags.empty())
    line += fmt::format(
        ", weight gradients lag by {} micro-batches on the stages, chosen by the times of passes (published: the "
        "stage's number)",
        fmt::join(shape.lags, ", "));
  return line;
}

}  // namespace slipstream::planner

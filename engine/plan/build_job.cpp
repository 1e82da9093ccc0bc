// SPDX-License-Identifier: Apache-2.0
// The planner of one stage: it places memory, then runs the passes in order.

#include "engine/plan/build_job.h"

#include <algorithm>
#include <map>

#include <fmt/core.h>

#include "engine/base/check.h"
#include "engine/plan/memory.h"
#include "engine/plan/passes/passes.h"
#include "engine/plan/passes/pipeline_transfers.h"
#include "engine/plan/passes/residency.h"
#include "engine/plan/passes/wire.h"
#include "engine/plan/update_shards.h"

namespace slipstream {
namespace {

void add_channel_of(const Communication& c, Job& job) {
  const auto same = std::find_if(job.channels.begin(), job.channels.end(),
                                 [&](const Channel& channel) { return channel.role == c.channel; });
  if (job.mesh.group_size(c.axis) == 1)
    throw PlanError("[plan] {} would travel along axis {}, which has one rank.", c.name, name_of(c.axis));
  // In a ring of stages, all ranks would send first, and none would receive.
  if (c.op == Op::send || c.op == Op::recv)
    throw PlanError(
        "[plan] {} is a separate {} between pieces, but all ranks of axis {} run the same plan: every rank would "
        "send first, then receive. Use "
        "exchange, which does both.",
        c.name, name_of(c.op), name_of(c.axis));
  if (same == job.channels.end())
    job.channels.push_back({c.channel, c.axis});
  else if (same->axis != c.axis)
    throw PlanError("[plan] {} would travel on channel {} along axis {}, but the channel connects axis {}.", c.name,
                    name_of(c.channel), name_of(c.axis), name_of(same->axis));
}

/// Adds the same channels on every stage. An unused channel costs a stage only a connection.
void add_channels(Job& job) {
  job.channels = {{Role::compute, Axis::self}, {Role::h2d, Axis::self}};
  if (!job.update_on_spine) job.channels.push_back({Role::update, Axis::self});
  const bool piped = job.mesh.stages() > 1, shared = job.reduces();
  if (piped)
    for (Role role : {Role::pipe_fwd_in, Role::pipe_fwd_out, Role::pipe_bwd_in, Role::pipe_bwd_out})
      job.channels.push_back({role, Axis::pipeline});
  if (job.has_tied_copies) job.channels.push_back({Role::tied, Axis::pipeline});
  if (piped && shared && job.aligns_grad_reduce) job.channels.push_back({Role::align, Axis::pipeline});
  if (job.mesh.world() > 1) job.channels.push_back({Role::scalars, job.scalars_axis()});
  if (job.norm_axis() != Axis::self && job.norm_axis() != job.scalars_axis())
    job.channels.push_back({Role::norm, job.norm_axis()});
  for (const Piece& piece : job.model.pieces)
    for (const Communication& c : piece.communications) add_channel_of(c, job);
  if (job.options.snapshots) job.channels.push_back({Role::save, Axis::self});
  if (!shared) return;
  const auto add = [&](Role role, Axis axis) {
    Channel added{role, axis};
    for (const Channel& channel : job.channels) {
      if (channel.role == role && channel.axis == axis) return;
      if (channel.role == role) added.name = fmt::format("{}_{}", name_of(role), name_of(axis));
    }
    job.channels.push_back(std::move(added));
  };
  for (const ParameterGroup& group : job.groups) {
    const Placement& placement = group.placement;
    if (!placement.reduces(job.mesh)) continue;
    add(Role::reduce, placement.reduces_over());
    // This channel is separate from Role::reduce, because two collectives of one communicator never overlap.
    if (placement.is_sharded()) add(Role::gather, placement.sharded_over);
    // This channel connects the shard groups and carries the sum of a shard.
    if (placement.reduces_across(job.mesh)) add(Role::reduce_across, placement.copied_over);
  }
}

/// Returns true if the parameters before the first layer and those after the last share no table. A shared table is in
/// use from the first piece of a forward pass to the last piece of a backward pass, so that a slot for it would be as
/// large as the table and never free.
bool ends_are_apart(const ModelSpec& model) {
  std::map<BufferId, int> layer_of;  // by the buffer of values or gradients
  for (const ParameterSpec& parameter : model.parameters) {
    if (parameter.is_copy) return false;
    layer_of[parameter.value] = layer_of[parameter.gradient] = parameter.layer;
  }
  bool apart = true;
  for (const std::vector<uint32_t>* pass : {&model.forward, &model.backward, &model.evaluate})
    for (uint32_t piece : *pass)
      model.for_accesses(piece, [&](const Slice& slice, bool) {
        const auto found = layer_of.find(slice.buffer);
        apart &= found == layer_of.end() || found->second == model.pieces[piece].layer;
      });
  return apart;
}

Placement placement_of(const Job& job, bool experts) {
  const PlanOptions& options = job.options;
  Sharding sharding = options.sharding;
  if (options.accumulate_unsharded && !sharding.parameters) sharding.gradients = false;
  return place(sharding, job.mesh, experts, {job.model.dtype, options.reduce_wire, options.gather_wire});
}

/// Returns the effective overlap.bucket_size. Sharded states are gathered bucket by bucket during the forward pass.
/// While communication keeps up with compute, the exposed time of all gathers is that of the largest bucket, so a
/// bucket has at most a fortieth of the bytes.
int64_t bucket_bytes(const Job& job) {
  constexpr int64_t kGatheredBuckets = 40;
  const PlanOptions& options = job.options;
  if (job.sharding() != Sharding{.states = true}) return options.bucket_bytes;
  int64_t elems = 0;
  for (const ParameterSpec& parameter : job.model.parameters) elems += parameter.elems;
  return std::min(options.bucket_bytes, std::max(options.first_bucket_bytes, 4 * elems / kGatheredBuckets));
}

void form_groups(Job& job) {
  int64_t first_scalar = 0;
  const std::vector<ParameterSpec>& parameters = job.model.parameters;
  const bool divides_experts =
      std::any_of(parameters.begin(), parameters.end(), [](const ParameterSpec& p) { return p.is_of_experts(); });
  for (const GroupRule& rule : job.options.groups)
    for (const bool experts : {false, true}) {
      if (experts && !divides_experts) continue;
      job.groups.push_back({.name = experts ? rule.name + " experts" : rule.name,
                            .parameters = {},
                            .placement = placement_of(job, experts),
                            .optimizer = rule.optimizer,
                            .rate_factor = rule.rate_factor,
                            .first_scalar = first_scalar});
      first_scalar += static_cast<int64_t>(rule.optimizer->scalars.size());
    }
}

/// Adds every parameter of the stage to a group of the first rule that holds it.
void fill_groups(Job& job) {
  const size_t groups_of_rule = job.groups.size() / job.options.groups.size();
  for (uint32_t p = 0; p < job.model.parameters.size(); ++p) {
    const ParameterSpec& parameter = job.model.parameters[p];
    const auto rule = std::find_if(job.options.groups.begin(), job.options.groups.end(), [&](const GroupRule& each) {
      return !each.holds || each.holds(job.model, parameter);
    });
    if (rule == job.options.groups.end())
      throw PlanError(
          "[plan] no parameter group contains {}, so it would not be updated. Let the last group contain the remaining "
          "parameters.",
          parameter.name());
    const size_t first = static_cast<size_t>(rule - job.options.groups.begin()) * groups_of_rule;
    job.groups[first + (parameter.is_of_experts() ? 1 : 0)].parameters.push_back(p);
  }
}

/// Returns the flops of the update of every parameter that stays whole in one shard, and 0 for the others.
std::vector<int64_t> matrix_costs(const Job& job) {
  std::vector<int64_t> costs(job.model.parameters.size(), 0);
  for (const ParameterGroup& group : job.groups) {
    if (group.optimizer->granularity != Granularity::matrix) continue;
    for (uint32_t p : group.parameters) {
      const ParameterSpec& parameter = job.model.parameters[p];
      if (parameter.is_split() || group.placement.sharding.gradients)
        throw PlanError(
            "[plan] {} is updated as a whole matrix, but {}. Use parallel.tensor = 1 and zero.stage = 0 or 1.",
            parameter.name(), parameter.is_split() ? "ranks hold parts of it" : "its gradients pass through a slot");
      for (const NamedTensor& tensor : parameter.tensors)
        costs[p] += group.optimizer->cost(matrix_shape(job.options, tensor, group.placement.rounds_updates())).flops;
    }
  }
  return costs;
}

/// Selects the stage's part of the model and records the facts about the whole model that the stage needs.
void take_stage(Job& job) {
  ModelSpec& model = job.model;
  job.parameter_elems = model.whole_parameter_elems();
  const auto order = norm_order(model);
  job.norm_parts = static_cast<int>(order.size());
  for (const ParameterSpec& parameter : model.parameters)
    if (parameter.is_copy) {
      job.has_tied_copies = true;
      job.tied_name = parameter.name();
    }
  const PlanOptions& options = job.options;
  job.schedule = !options.schedule.stages.empty()
                     ? options.schedule
                     : make_schedule(ScheduleKind::one_f_one_b,
                                     {.stages = job.mesh.stages(), .micro_batches = job.buffers.micro_batches});
  job.layers = options.layers;
  if (job.layers.empty() && job.schedule.parts() == 1) job.layers = {model.layers};
  const bool ends = job.sharding().gradients && ends_are_apart(model);
  const uint32_t take_batch = model.forward.front();
  job.chunks = cut_stage(model, job.buffers, job.schedule, job.layers, job.stage());
  job.recomputed =
      recompute(model, job.buffers, job.chunks, options.recompute, options.recompute_layers, job.schedule.takes_turns);
  job.takes_batch = !model.forward.empty() && model.forward.front() == take_batch;
  job.actions = job.schedule.stages[static_cast<size_t>(job.stage())];
  if (job.mesh.stages() > 1) job.rings = size_rings(job.chunks, job.actions, model, job.schedule.placement);
  for (Ring& ring : job.rings) ring.slots += options.spare_slots;
  fill_groups(job);
  const Sharding sharding = job.sharding();
  // Sums by exchange divide a bucket, or a shard, into one part for every rank that adds to it.
  int parts = 1;
  std::vector<GroupLayout> groups;
  for (const ParameterGroup& group : job.groups) {
    groups.push_back({.shards = group.placement.shards(job.mesh), .by_layer = group.placement.sharding.gradients});
    const bool whole = !group.placement.is_sharded() || options.sums_by_exchange;
    parts = std::max(parts, whole ? job.mesh.group_size(Axis::replica) : groups.back().shards);
  }
  LayoutOptions layout{.reduce_mode = options.reduce_mode,
                       .bucket_bytes = bucket_bytes(job),
                       .first_bucket_bytes = options.first_bucket_bytes,
                       .group_size = parts,
                       .sharded = sharding.states || options.reduce_wire != DType::f32,
                       .alone = {},
                       .groups = std::move(groups),
                       .group_of = {},
                       .ends = ends,
                       .passes = {},
                       .whole = {},
                       .persistent_elems = sharding.parameters ? options.persistent_elems : 0,
                       .matrix_costs = matrix_costs(job)};
  uint32_t position = 0;
  for (size_t c = job.chunks.size(); c-- > 0;)
    for (const std::vector<uint32_t>* pass : {&job.chunks[c].backward, &job.chunks[c].weight})
      layout.passes.push_back(position += static_cast<uint32_t>(pass->size()));
  for (size_t c = 0; c < options.reduced_at_once.size(); ++c)
    if (options.reduced_at_once[c]) layout.whole.push_back(job.backward_positions(static_cast<int>(c)));
  for (uint32_t p = 0; p < model.parameters.size() && job.has_tied_copies; ++p)
    if (model.parameters[p].name() == job.tied_name) layout.alone.push_back(p);
  layout.group_of.resize(model.parameters.size());
  for (uint32_t g = 0; g < job.groups.size(); ++g)
    for (uint32_t p : job.groups[g].parameters) layout.group_of[p] = g;
  job.layout = place_parameters(model, layout);
  for (PlacedPart& placed : job.layout.parts) {
    const ParameterSpec& parameter = model.parameters[placed.part.parameter];
    const auto found = order.find({parameter.name(), placed.part.begin_elems});
    const bool counted_elsewhere = job.has_tied_copies && parameter.name() == job.tied_name && !parameter.is_copy;
    if (found != order.end() && !counted_elsewhere) placed.norm_index = found->second;
  }
}

/// Frees the memory of activations and scratch that only other stages use.
void drop_what_no_plan_touches(Job& job) {
  std::vector<char> touched(job.buffers.size(), 0);
  for (const auto& [kind, cadence, plan] : job.plans)
    for (ItemId i = 0; i < plan.size(); ++i)
      for (const std::vector<Slice>* slices : {&plan[i].reads, &plan[i].writes})
        for (const Slice& slice : *slices) touched[slice.buffer] = 1;
  drop_untouched(job.model, job.buffers, touched);
}

}  // namespace

Job build_job(ModelSpec model, Buffers buffers, const PlanOptions& options) {
  Job job{.options = options,
          .mesh = Mesh(options.sizes, options.mesh_order),
          .aligns_grad_reduce = options.align_grad_reduce && options.sizes.pipeline > 1 && options.sizes.replicas() > 1,
          .update_on_spine = options.update_on_spine && !options.double_buffer,
          .schedule = {},
          .layers = {},
          .model = std::move(model),
          .buffers = std::move(buffers)};
  form_groups(job);
  const Sharding sharding = job.sharding();
  if (options.double_buffer && sharding.parameters)
    throw PlanError(
        "[plan] double_buffer with sharded parameters: layers use slots, so no update waits for their readers. Use "
        "whole parameters.");
  if (job.aligns_grad_reduce && sharding.gradients)
    throw PlanError(
        "[plan] align_grad_reduce with sharded gradients: they leave their slots early, because the next layer needs "
        "the slot. Use whole gradients.");
  for (const GroupRule& group : options.groups)
    if (options.skips && (!options.clip || group.optimizer->start != UpdateStart::after_clip))
      throw PlanError("[plan] a plan that skips updates needs the gradient norm, and every update must wait for it.");
  if (sharding.states && job.model.tied.split)
    throw PlanError(
        "[plan] sharded states keep the shares of a tied table together: build the model with split_tied_embedding = "
        "false.");
  take_stage(job);
  place_memory(job);
  add_channels(job);

  Plan& train = job.train();
  train.kind = name_of(PlanKind::train);
  Residency residency(job);
  PipelineTransfers transfers(job, job.actions);
  const SpineMap spine = spine_pass(job, residency, transfers, train);
  sublayer_pass(job, train);
  transfers.append_tasks(train, static_cast<ItemId>(train.spine.size()));
  Reduced reduced = data_parallel_pass(job, spine, train);
  residency.append_tasks(train, &reduced);
  take_turns(reduced, options.max_inflight_buckets, train);
  tied_copies_pass(job, reduced, train);
  std::vector<Point> loss;
  if (options.skips) loss = loss_pass(job, spine, train);
  const std::vector<Point> gathered = update_pass(job, reduced, loss, train);
  if (!options.skips) loss = loss_pass(job, spine, train);
  report_and_input_pass(job, loss, options.param_gather ? std::vector<Point>{} : gathered, train);
  seal(train);
  evaluate_pass(job, job.add_plan(PlanKind::evaluate, When::between));
  prime_pass(job, sealed(train, gathered), job.add_plan(PlanKind::prime, When::start));
  if (options.snapshots) save_pass(job, job.add_plan(PlanKind::save, When::asked));
  for (PlanRow& row : job.plans) seal(row.plan);
  drop_what_no_plan_touches(job);
  return job;
}

}  // namespace slipstream

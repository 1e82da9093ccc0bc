// SPDX-License-Identifier: Apache-2.0
// Functions of Job, and the planner of one stage: it places memory, then runs the passes in order.

#include "engine/plan/job.h"

#include <algorithm>
#include <map>

#include <fmt/core.h>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "engine/plan/memory.h"
#include "engine/plan/passes/passes.h"
#include "engine/plan/passes/pipeline_transfers.h"
#include "engine/plan/passes/residency.h"
#include "engine/plan/passes/wire.h"

namespace slipstream {
namespace {

void add_channel_of(const Communication& c, Job& job) {
  const auto same = std::find_if(job.channels.begin(), job.channels.end(),
                                 [&](const Channel& channel) { return channel.name == c.channel; });
  if (job.mesh.group_size(c.axis) == 1)
    throw PlanError("[plan] {} would travel along axis {}, which has one rank.", c.name, name_of(c.axis));
  // In a ring all ranks would send first, and none would receive.
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
                    c.channel, name_of(c.axis), name_of(same->axis));
}

/// The same list on every stage: an unused channel costs a stage only a connection.
void add_channels(Job& job) {
  job.channels = {{"compute", Axis::self}, {"h2d", Axis::self}};
  if (!job.update_on_spine) job.channels.push_back({"update", Axis::self});
  const bool piped = job.mesh.group_size(Axis::pipeline) > 1, shared = job.mesh.group_size(Axis::replica) > 1;
  if (piped)
    for (const char* name : {"pipe_fwd_in", "pipe_fwd_out", "pipe_bwd_in", "pipe_bwd_out"})
      job.channels.push_back({name, Axis::pipeline});
  if (job.has_tied_copies) job.channels.push_back({"tied", Axis::pipeline});
  if (piped && shared && job.aligns_grad_reduce) job.channels.push_back({"align", Axis::pipeline});
  if (job.mesh.world() > 1) job.channels.push_back({"scalars", job.scalars_axis()});
  if (job.norm_axis() != Axis::self && job.norm_axis() != job.scalars_axis())
    job.channels.push_back({"norm", job.norm_axis()});
  for (const Piece& piece : job.model.pieces)
    for (const Communication& c : piece.communications) add_channel_of(c, job);
  if (!shared) return;
  job.channels.push_back({"reduce", job.shard_axis()});
  // Separate from "reduce": two collectives of one communicator never overlap.
  if (job.zero_stage > 0) job.channels.push_back({"gather", job.shard_axis()});
  // Between the shard groups: the sum of a shard.
  if (job.is_hybrid()) job.channels.push_back({"reduce_across", Axis::data_outer});
}

/// Do the parameters before the first layer and those after the last share none? A shared table is in use from the
/// first piece of a forward pass to the last of a backward pass: a slot for it would be as large and never free.
bool ends_are_apart(const ModelSpec& model) {
  std::map<BufferId, int> layer_of;  // of values and gradients
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

/// ZeRO's stage in effect on these ranks.
int zero_stage_of(const PlanOptions& options) {
  if (options.sizes.data * options.sizes.context == 1 || options.sizes.data_inner == 1) return 0;
  return options.zero_stage == 2 && options.accumulate_unsharded ? 1 : options.zero_stage;
}

/// Effective overlap.bucket_size. ZeRO-1 gathers its buckets one after the other during the forward pass: while
/// communication keeps up with compute, the exposed time of all gathers is that of the largest, so a bucket has at most
/// a fortieth of the bytes.
int64_t bucket_bytes(const Job& job) {
  constexpr int64_t kGatheredBuckets = 40;
  const PlanOptions& options = job.options;
  if (job.zero_stage != 1) return options.bucket_bytes;
  int64_t elems = 0;
  for (const ParameterSpec& parameter : job.model.parameters) elems += parameter.elems;
  return std::min(options.bucket_bytes, std::max(options.first_bucket_bytes, 4 * elems / kGatheredBuckets));
}

/// Selects the stage's part of the model and records the facts about the whole model that it needs.
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
                                     {.stages = options.sizes.pipeline, .micro_batches = job.buffers.micro_batches});
  job.layers = options.layers;
  if (job.layers.empty() && job.schedule.parts() == 1) job.layers = {model.layers};
  const bool ends = job.zero_stage >= 2 && ends_are_apart(model);
  const uint32_t take_batch = model.forward.front();
  job.chunks = cut_stage(model, job.buffers, job.schedule, job.layers, job.stage());
  job.recomputed = recompute(model, job.buffers, job.chunks, options.recompute);
  job.takes_batch = !model.forward.empty() && model.forward.front() == take_batch;
  job.actions = job.schedule.stages[static_cast<size_t>(job.stage())];
  if (options.sizes.pipeline > 1) job.rings = size_rings(job.chunks, job.actions, model);
  LayoutOptions layout{.reduce_mode = options.reduce_mode,
                       .bucket_bytes = bucket_bytes(job),
                       .first_bucket_bytes = options.first_bucket_bytes,
                       // Shards that are summed by exchange are divided into a part for every group.
                       .group_size = job.mesh.group_size(
                           job.zero_stage > 0 && !options.sums_by_exchange ? job.shard_axis() : Axis::replica),
                       .sharded = job.zero_stage > 0 || options.wire_dtype != DType::f32,
                       .alone = {},
                       .by_layer = job.zero_stage >= 2,
                       .ends = ends,
                       .passes = {},
                       .whole = {},
                       .persistent_elems = job.zero_stage >= 3 ? options.persistent_elems : 0};
  uint32_t position = 0;
  for (size_t c = job.chunks.size(); c-- > 0;)
    for (const std::vector<uint32_t>* pass : {&job.chunks[c].backward, &job.chunks[c].weight})
      layout.passes.push_back(position += static_cast<uint32_t>(pass->size()));
  for (size_t c = 0; c < options.reduced_at_once.size(); ++c)
    if (options.reduced_at_once[c]) layout.whole.push_back(job.backward_positions(static_cast<int>(c)));
  for (uint32_t p = 0; p < model.parameters.size() && job.has_tied_copies; ++p)
    if (model.parameters[p].name() == job.tied_name) layout.alone.push_back(p);
  job.layout = place_parameters(model, layout);
  for (PlacedPart& placed : job.layout.parts) {
    const ParameterSpec& parameter = model.parameters[placed.part.parameter];
    const auto found = order.find({parameter.name(), placed.part.begin_elems});
    const bool counted_elsewhere = job.has_tied_copies && parameter.name() == job.tied_name && !parameter.is_copy;
    if (found != order.end() && !counted_elsewhere) placed.norm_index = found->second;
  }
}

/// Activations and scratch of other stages use no memory here.
void drop_what_no_plan_touches(Job& job) {
  std::vector<char> touched(job.buffers.size(), 0);
  for (const Plan* plan : {&job.train, &job.evaluate, &job.prime})
    for (ItemId i = 0; i < plan->size(); ++i)
      for (const std::vector<Slice>* slices : {&(*plan)[i].reads, &(*plan)[i].writes})
        for (const Slice& slice : *slices) touched[slice.buffer] = 1;
  drop_untouched(job.model, job.buffers, touched);
}

}  // namespace

Slice flat_slice(BufferId buffer, int64_t offset_elems, int64_t elems, DType dtype) {
  return {buffer, bytes_of(offset_elems, dtype), bytes_of(elems, dtype)};
}

ChannelId Job::channel(const std::string& name) const {
  for (ChannelId c = 0; c < channels.size(); ++c)
    if (channels[c].name == name) return c;
  throw PlanError("[plan] no channel is named {}.", name);
}

std::pair<uint32_t, uint32_t> Job::backward_positions(int chunk) const {
  uint32_t begin = 0;
  for (size_t c = chunks.size(); --c > static_cast<size_t>(chunk);)
    begin += static_cast<uint32_t>(chunks[c].backward.size() + chunks[c].weight.size());
  const Chunk& of = chunks[static_cast<size_t>(chunk)];
  return {begin, begin + static_cast<uint32_t>(of.backward.size() + of.weight.size())};
}

Axis Job::scalars_axis() const { return mesh.world() == mesh.group_size(Axis::replica) ? Axis::replica : Axis::world; }

Axis Job::norm_axis() const {
  const bool piped = mesh.group_size(Axis::pipeline) > 1, split = mesh.group_size(Axis::tensor) > 1;
  if (split) return piped || zero_stage > 0 ? Axis::world : Axis::tensor;
  if (zero_stage == 0) return piped ? Axis::pipeline : Axis::self;
  return is_hybrid() && !piped ? Axis::data_inner : scalars_axis();
}

bool Job::counts_squares_of(const ParameterSpec& parameter) const {
  const Coordinates at = mesh.coordinates(options.rank);
  if (at.tensor > 0 && !parameter.is_split()) return false;
  if (norm_axis() != Axis::world) return true;
  // Ranks that hold the same values again add zeros.
  return zero_stage == 0 ? mesh.index_in_group(Axis::replica, options.rank) == 0
                         : mesh.index_in_group(Axis::data_outer, options.rank) == 0;
}

Job build_job(ModelSpec model, Buffers buffers, const PlanOptions& options) {
  Job job{.options = options,
          .mesh = Mesh(options.sizes, options.mesh_order),
          .zero_stage = zero_stage_of(options),
          .aligns_grad_reduce =
              options.align_grad_reduce && options.sizes.pipeline > 1 && options.sizes.data * options.sizes.context > 1,
          .update_on_spine = options.update_on_spine && !options.double_buffer,
          .schedule = {},
          .layers = {},
          .model = std::move(model),
          .buffers = std::move(buffers)};
  if (options.double_buffer && job.zero_stage >= 3)
    throw PlanError(
        "[plan] double_buffer with ZeRO-3: layers use slots, so no update waits for their readers. Use stage 0, "
        "1 or 2.");
  if (job.aligns_grad_reduce && job.zero_stage >= 2)
    throw PlanError(
        "[plan] align_grad_reduce with ZeRO-{}: gradients leave their slots early, because the next layer "
        "needs the slot. Use stage 0 or 1.",
        job.zero_stage);
  if (job.zero_stage > 0 && job.model.tied.split)
    throw PlanError(
        "[plan] ZeRO keeps the shares of a tied table together: build the model with split_tied_embedding = false.");
  take_stage(job);
  place_memory(job);
  add_channels(job);

  job.train.kind = "train";
  Residency residency(job);
  PipelineTransfers transfers(job, job.actions);
  const SpineMap spine = spine_pass(job, residency, transfers, job.train);
  sublayer_pass(job, job.train);
  transfers.append_tasks(job.train, static_cast<ItemId>(job.train.spine.size()));
  Reduced reduced = data_parallel_pass(job, spine, job.train);
  residency.append_tasks(job.train, &reduced);
  take_turns(reduced, job.train);
  tied_copies_pass(job, reduced, job.train);
  const std::vector<Point> gathered = update_pass(job, reduced, job.train);
  report_and_input_pass(job, spine, options.param_gather ? std::vector<Point>{} : gathered, job.train);
  seal(job.train);

  job.evaluate.kind = "evaluate";
  evaluate_pass(job, job.evaluate);
  seal(job.evaluate);

  job.prime.kind = "prime";
  prime_pass(job, sealed(job.train, gathered), job.prime);
  drop_what_no_plan_touches(job);
  return job;
}

std::string memory_table(const Job& job, const std::vector<ExtraMemory>& beside) {
  std::vector<ExtraMemory> rows;
  for (int owner = 0; owner < kOwners; ++owner)
    rows.push_back({name_of(static_cast<Owner>(owner)), job.buffers.bytes(static_cast<Owner>(owner))});
  rows.insert(rows.end(), beside.begin(), beside.end());
  int64_t total_bytes = 0;
  size_t width = 14;
  for (const ExtraMemory& row : rows) {
    total_bytes += row.size_bytes;
    width = std::max(width, row.owner.size() + 1);
  }
  std::string table;
  for (const ExtraMemory& row : rows)
    if (row.size_bytes > 0) table += fmt::format("  {:<{}}{:>12}\n", row.owner, width, format_bytes(row.size_bytes));
  return table + fmt::format("  {:<{}}{:>12}\n", "total", width, format_bytes(total_bytes));
}

bool carries_states(const Channel& channel) {
  return channel.name == "reduce" || channel.name == "gather" || channel.name == "reduce_across";
}

}  // namespace slipstream

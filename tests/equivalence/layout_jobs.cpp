// SPDX-License-Identifier: Apache-2.0
// The models of the tables, their batches, and the jobs of a layout.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/philox.h"
#include "engine/plan/build_job.h"
#include "engine/plan/keeping.h"
#include "tests/equivalence/trained.h"

namespace slipstream::equivalence {

namespace {

/// Orders `plan` as a framework of hooks does: every task is issued as soon as the tasks that it waits for have been
/// issued, in the order in which they were appended. Nothing is pruned or proved. Throws: PlanError if the spine waits
/// for an item that is never issued.
void order_as_reached(Plan& plan) {
  const auto spine = static_cast<ItemId>(plan.spine.size());
  for (ItemId t = spine; t < plan.size(); ++t)
    if (plan.task(t).before) plan[plan.task(t).before->item].after.push_back({t});
  std::vector<bool> issued(plan.size(), false);
  const auto reached = [&](ItemId item) {
    return std::all_of(plan[item].after.begin(), plan[item].after.end(),
                       [&](const Point& p) { return issued[p.item]; });
  };
  const auto issue = [&](ItemId item) { issued[item] = true, plan.order.push_back(item); };
  plan.order.clear();
  for (ItemId i = 0; i <= spine; ++i) {
    for (bool again = true; again;) {
      again = false;
      for (ItemId t = spine; t < plan.size(); ++t)
        if (!issued[t] && reached(t)) issue(t), again = true;
    }
    if (i == spine) break;
    if (!reached(i)) throw PlanError("{} waits for a task that is not reached before it.", plan[i].name);
    issue(i);
  }
}

}  // namespace

models::ModelOptions tiny_gpt2() {
  return {.family = Family::gpt2,
          .layers = 2,
          .heads = 2,
          .kv_heads = 2,
          .width = 24,
          .ffn_width = 96,
          .context = 9,
          .vocab = 397,
          .tokens = 9};
}
models::ModelOptions tiny_llama() {
  return {.family = Family::llama,
          .layers = 2,
          .heads = 4,
          .kv_heads = 2,
          .width = 32,
          .ffn_width = 40,
          .context = 9,
          .vocab = 151,
          .tie_embeddings = false,
          .tokens = 9};
}

int32_t document_begin_of(const Layout& layout, int64_t index, int64_t position) {
  int64_t begin = 0;
  for (int64_t end = 0; layout.document_tokens > 0 && end <= position;
       end += 1 + (index + end) % layout.document_tokens)
    begin = end;
  return static_cast<int32_t>(begin);
}

int32_t token_of(int64_t step, int64_t index, int64_t position, int64_t vocab) {
  const Philox random(20, "tokens");
  return static_cast<int32_t>(
      random.below(static_cast<uint64_t>((step * 1000 + index) * 100 + position), static_cast<uint64_t>(vocab)));
}

std::vector<std::unique_ptr<Job>> make_jobs(const Layout& layout, int rank) {
  models::ModelOptions options = layout.model;
  options.batch = layout.micro_batch;
  options.micro_batches = layout.micro_batches;
  options.ranks = layout.ranks * layout.context;
  options.head_chunk_bytes = layout.head_chunk_bytes;
  options.head_tokens = layout.head_tokens;
  options.global_tokens = layout.mean_over_tokens > 0
                              ? layout.mean_over_tokens
                              : layout.ranks * layout.micro_batch * layout.micro_batches * options.tokens;
  const Mesh mesh(layout.sizes());
  options.tokens /= layout.context;
  options.context_ranks = layout.context, options.context_rank = mesh.coordinates(rank).context;
  const bool has_order = !layout.order.stages.empty();
  const PipelineSchedule schedule =
      has_order ? layout.order
                : make_schedule(layout.schedule, {layout.stages, layout.micro_batches, layout.virtual_stages,
                                                  layout.hides_transfers, layout.lags});
  const comm::RooflinePrice price({.flops_per_second = 5e9, .bytes_per_second = 1e10, .launch_ns = 1000}, {1e9, 20000});
  std::vector<int> layers = layout.layers;
  if (layers.empty()) {
    Buffers buffers;
    layers = balanced_layers(models::build_model(options, buffers), schedule.parts(),
                             [&](const Cost& cost) { return price.seconds(cost); });
  }
  options.cuts = cuts_of(layers);
  options.ends_apart = schedule.placement.ends_apart();
  options.split_backward = schedule.splits_backward, options.takes_turns = schedule.takes_turns;
  options.tensor = layout.tensor, options.expert_ranks = layout.expert;
  options.whole_layers = layout.zero_stage >= 2;
  options.sequence_parallel = layout.sequence_parallel;
  options.tensor_chunks = models::token_chunks(options.batch * options.tokens, layout.tensor_chunks, layout.tensor,
                                               layout.sequence_parallel);
  std::vector<std::unique_ptr<Job>> jobs;
  for (int stage = 0; stage < layout.stages; ++stage) {
    const int as_rank = stage == mesh.coordinates(rank).pipeline ? rank : mesh.rank({.pipeline = stage});
    options.tensor_index = mesh.coordinates(as_rank).tensor,
    options.expert_rank = mesh.index_in_group(Axis::expert, as_rank);
    Buffers buffers;
    ModelSpec model = models::build_model(options, buffers);
    if (layout.change_model) layout.change_model(model);
    jobs.push_back(std::make_unique<Job>(build_job(
        std::move(model), std::move(buffers),
        {.sizes = layout.sizes(),
         .rank = as_rank,
         .reduce_mode = layout.reduce_mode,
         .bucket_bytes = layout.bucket_bytes,
         .first_bucket_bytes = layout.first_bucket_bytes,
         .max_inflight_buckets = layout.max_inflight_buckets,
         .reduce_wire = layout.wire_dtype,
         .error_feedback = layout.error_feedback,
         .algorithm = layout.algorithm,
         .sums_by_exchange = layout.sums_by_exchange,
         .groups = layout.groups,
         .multipliers = layout.multipliers,
         .clip = layout.max_norm > 0 || layout.skips,
         .skips = layout.skips,
         .optimizer_per_bucket = layout.optimizer_per_bucket,
         .sharding = sharding_of_stage(layout.zero_stage),
         .prefetch_depth = layout.prefetch_depth,
         .gather_wire = layout.gather_dtype,
         .persistent_elems = layout.persistent_elems,
         .schedule = schedule,
         .spare_slots = has_order ? layout.micro_batches * layout.virtual_stages : 0,
         .layers = layers,
         .reshard_after_forward = layout.reshard_after_forward,
         .accumulate_unsharded = layout.accumulate_unsharded,
         .double_buffer = layout.double_buffer,
         .update_on_spine = layout.update_on_spine,
         .recompute = layout.recompute,
         .recompute_layers = layout.recompute_layers,
         .align_grad_reduce = layout.align_grad_reduce,
         .reduced_at_once =
             std::vector<char>(static_cast<size_t>(stage > 0 && layout.reduced_at_once ? layout.virtual_stages : 0), 1),
         .snapshots = layout.save_interval > 0})));
  }
  if (layout.keeps) {
    std::vector<Job*> stages;
    for (const auto& job : jobs) stages.push_back(job.get());
    add_keeping(stages, mesh.world() > 1 ? layout.to_holder : 0);
  }
  for (size_t row = 0; row < jobs[0]->plans.size(); ++row) {
    if (layout.as_reached && jobs[0]->plans[row].kind == PlanKind::train) {
      for (const auto& job : jobs) order_as_reached(job->train());
      continue;
    }
    std::vector<comm::Stage> stages;
    for (const auto& job : jobs) stages.push_back({&job->plans[row].plan, &job->buffers});
    const comm::Proof proof = comm::finish(stages, mesh, jobs[0]->channels, price);
    if (layout.proved) layout.proved(proof);
    if (!proof.holds())
      throw PlanError("{}: {} {}", layout.name, proof.deadlock,
                      proof.hazards.empty() ? "" : proof.hazards[0].sentence());
  }
  if (layout.double_buffer)
    for (const auto& job : jobs) swap_buffers(*job);
  return jobs;
}

std::unique_ptr<Job> make_job(const Layout& layout, int rank) {
  std::vector<std::unique_ptr<Job>> jobs = make_jobs(layout, rank);
  return std::move(jobs[static_cast<size_t>(jobs[0]->mesh.coordinates(rank).pipeline)]);
}

}  // namespace slipstream::equivalence

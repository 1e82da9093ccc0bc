// SPDX-License-Identifier: Apache-2.0
// Translates the run file's words into the planner's, builds the job and gives its plans their order.

#include "cli/job.h"

#include <sched.h>

#include <algorithm>

#include "comm/link.h"
#include "comm/rehearse/rehearse.h"
#include "comm/rehearse/seams.h"
#include "engine/base/check.h"
#include "engine/config/validate.h"
#include "engine/data/dataset.h"

namespace slipstream::cli {
namespace {

ReduceWay way_of(GradReduce way) {
  switch (way) {
    case GradReduce::bucketed: return ReduceWay::bucketed;
    case GradReduce::per_parameter: return ReduceWay::per_parameter;
    case GradReduce::flat: return ReduceWay::flat;
    case GradReduce::naive: return ReduceWay::naive;
  }
  return ReduceWay::bucketed;
}

PlanOptions plan_options(const JobRequest& request, const Layout& layout) {
  const RunConfig& config = request.config;
  return {.sizes = {.data = layout.data, .context = layout.context, .pipeline = layout.pipeline, .tensor = layout.tensor,
                    .data_inner = config.zero.stage > 0 ? static_cast<int>(config.zero.shard_size) : 0},
          .rank = request.rank,
          .way = way_of(config.overlap.grad_reduce),
          .bucket_bytes = config.overlap.bucket_size_bytes,
          .first_bucket_bytes = config.overlap.first_bucket_size_bytes,
          .wire_dtype = config.comm.grad_dtype,
          .clip = config.optimizer.grad_clip > 0,
          .optimizer_per_bucket = config.overlap.optimizer_per_bucket,
          .zero_stage = static_cast<int>(config.zero.stage),
          .prefetch_depth = static_cast<int>(config.zero.prefetch_depth),
          .reshard_after_forward = config.zero.reshard_after_forward};
}

}  // namespace

int64_t vocab_of(const RunConfig& config) {
  if (config.model.vocab_size > 0) return config.model.vocab_size;
  if (config.data.tokenizer == "bytes") return 256;
  return data::open_dataset({.train = config.data.train, .validation = config.data.validation,
                             .validation_fraction = config.data.validation_fraction, .tokenizer = config.data.tokenizer,
                             .sequence_length = config.train.sequence_length}).tokenizer->vocab_size();
}

models::ModelOptions model_options(const JobRequest& request) {
  const RunConfig& config = request.config;
  const Layout layout = resolve_layout(config, request.world);
  const slipstream::Batch batch = resolve_batch(config, layout.data);
  const int64_t vocab = config.model.vocab_size > 0 ? config.model.vocab_size : request.vocab;
  if (request.vocab > vocab)
    throw ConfigError("[model] vocab_size {} is smaller than the tokenizer's {}: ids would not fit. Set model.vocab_size = 0 "
                      "to take the tokenizer's.", vocab, request.vocab);
  return {.family = config.model.family == Family::gpt2 ? models::Family::gpt2 : models::Family::llama,
          .layers = config.model.layers,
          .heads = config.model.heads,
          .kv_heads = config.model.kv_heads,
          .width = config.model.width,
          .ffn_width = config.model.ffn_width,
          .context = config.model.context,
          .vocab = vocab,
          .tie_embeddings = config.model.tie_embeddings == Choice::yes,
          .rope_theta = static_cast<float>(config.model.rope_theta),
          .norm_eps = static_cast<float>(config.model.norm_eps),
          .dtype = config.train.dtype,
          .batch = config.train.micro_batch_size,
          .tokens = config.train.sequence_length,
          .global_tokens = batch.global_batch_size * config.train.sequence_length,
          .micro_batches = static_cast<int>(batch.micro_batches),
          .ranks = layout.data,
          // With sharded updates both shares of a tied table travel together.
          .split_tied_embedding = config.overlap.split_tied_embedding && (config.zero.stage == 0 || layout.data == 1),
          .head_chunk_bytes = config.overlap.bucket_size_bytes};
}

comm::RooflinePrice price_of(const RunConfig& config, const Machine& machine, const Mesh& mesh) {
  const double peak = config.train.dtype == DType::bf16 ? machine.flops_per_second_bf16 : machine.flops_per_second_f32;
  const comm::Rates rates{.flops_per_second = peak * machine.matmul_efficiency,
                          .bytes_per_second = static_cast<double>(machine.bytes_per_second),
                          .launch_ns = machine.launch_ns};
  const bool emulated = config.comm.emulate.bandwidth_bytes_per_second > 0;
  const comm::Link intra = emulated ? comm::Link{static_cast<double>(config.comm.emulate.bandwidth_bytes_per_second), config.comm.emulate.latency_ns}
                                    : comm::Link{static_cast<double>(machine.intra_bytes_per_second), machine.intra_latency_ns};
  comm::RooflinePrice price(rates, intra);
  if (!emulated && mesh.world() > machine.ranks_per_node) {
    const comm::Link inter{static_cast<double>(machine.inter_bytes_per_second), machine.inter_latency_ns};
    for (Axis axis : {Axis::data, Axis::world, Axis::data_outer}) price.set_link(axis, inter, 1);
    if (mesh.group_size(Axis::data_inner) > machine.ranks_per_node) price.set_link(Axis::data_inner, inter, 1);
  }
  return price;
}

FinishedJob build_finished_job(const JobRequest& request) {
  const Layout layout = resolve_layout(request.config, request.world);
  const slipstream::Batch batch = resolve_batch(request.config, layout.data);
  Buffers buffers;
  ModelSpec model = models::build_model(model_options(request), buffers);
  FinishedJob finished;
  finished.micro_batches = batch.micro_batches;
  finished.global_batch = batch.global_batch_size;
  PlanOptions options = plan_options(request, layout);
  // Whole gradients are reduced once in a step and add in the order of stage 0; shards are reduced in every micro-batch.
  options.accumulate_unsharded = options.zero_stage == 2 && batch.micro_batches > 1 && request.machine.memory_bytes > 0;
  finished.job = std::make_unique<Job>(build_job(model, buffers, options));
  if (options.accumulate_unsharded && finished.job->buffers.total_bytes() > request.machine.memory_bytes) {
    options.accumulate_unsharded = false;
    finished.job = std::make_unique<Job>(build_job(std::move(model), std::move(buffers), options));
  }
  Job& job = *finished.job;
  const comm::RooflinePrice price = price_of(request.config, request.machine, job.mesh);
  const auto finish = [&](Plan& plan) {
    const comm::Stage stage{&plan, &job.buffers};
    return comm::finish({&stage, 1}, job.mesh, job.channels, price);
  };
  finish(job.prime);
  finish(job.evaluate);
  finished.proof = finish(job.train);
  return finished;
}

std::vector<ZeroMemory> zero_memory(const JobRequest& request) {
  std::vector<ZeroMemory> table;
  JobRequest asked = request;
  asked.config.zero.shard_size = 0;
  asked.config.parallel = Parallel{};
  asked.config.train.global_batch_size = 0;
  for (int stage = 0; stage <= 3; ++stage)
    for (int ranks : {2, 4, 8, 64}) {
      asked.config.zero.stage = stage;
      asked.world = ranks;
      asked.rank = 0;
      Buffers buffers;
      ModelSpec model = models::build_model(model_options(asked), buffers);
      const Job job = build_job(std::move(model), std::move(buffers), plan_options(asked, resolve_layout(asked.config, ranks)));
      ZeroMemory row{.stage = stage, .ranks = ranks};
      for (Owner owner : {Owner::parameters, Owner::gradients, Owner::optimizer}) row.planned_bytes += job.buffers.bytes(owner);
      const int64_t elems = job.model.parameter_elems(), value = size_of(job.model.dtype), optimizer = value == 4 ? 8 : 12;
      const int64_t whole = (stage < 3 ? value : 0) + (stage < 2 ? 4 : 0) + (stage < 1 ? optimizer : 0);
      row.formula_bytes = elems * whole + elems * (value + 4 + optimizer - whole) / ranks;
      table.push_back(row);
    }
  return table;
}

WireBytes wire_bytes_of_step(const Job& job) {
  WireBytes bytes;
  for (const Task& task : job.train.tasks)
    if (task.bucket >= 0 && is_communication(task.op))
      bytes.sent += comm::wire_bytes(task.op, task.algorithm, job.mesh.group_size(job.channels[task.channel].axis), task.elems, task.dtype);
  const int64_t stage = job.options.zero_stage, ranks = job.mesh.group_size(job.shard_axis()), elems = job.model.parameter_elems();
  const int64_t times = stage >= 2 ? job.buffers.micro_batches : 1;
  const int64_t gradients = (stage == 0 ? 2 : times) * size_of(job.options.wire_dtype);
  const int64_t parameters = (stage == 0 ? 0 : stage < 3 ? 1 : 2 * times) * size_of(job.model.dtype);
  bytes.theory = (gradients + parameters) * elems * (ranks - 1) / ranks;
  return bytes;
}

double rehearsed_step_ms(const Job& job, const std::vector<int64_t>& item_ns, const comm::Price& otherwise) {
  comm::MeasuredPrice price(otherwise);
  std::vector<int64_t> local = item_ns;
  for (ItemId i = 0; i < job.train.size(); ++i)
    if (is_communication(job.train[i].op)) local[i] = -1;
  price.set(job.train, std::move(local));
  const std::vector<const Plan*> runs(3, &job.train);
  const comm::RankRuns rank{.rank = job.options.rank, .runs = runs, .seams = comm::link_all(runs, job.channels)};
  const comm::Rehearsal rehearsal = comm::rehearse(job.mesh, job.channels, {&rank, 1}, price);
  return rehearsal.finished ? static_cast<double>(rehearsal.ranks[0].step_period_ns(1)) / 1e6 : -1;
}

Machine machine_of(const RunConfig& config, const std::string& path, int threads) {
  if (!path.empty()) return load_machine(path);
  if (!config.device.machine.empty()) return load_machine(config.device.machine);
  return this_host(threads);
}

int threads_of(const RunConfig& config, int ranks_on_host) {
  if (config.device.threads > 0) return static_cast<int>(config.device.threads);
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const int cores = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
  return std::max(1, cores / std::max(1, ranks_on_host));
}

}  // namespace slipstream::cli

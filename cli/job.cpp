// SPDX-License-Identifier: Apache-2.0
// Translates the run file's words into the planner's, builds the job and gives its plans their order.

#include "cli/job.h"

#include <sched.h>

#include <algorithm>

#include <fmt/ranges.h>

#include "cli/least_memory.h"
#include "cli/pass_times.h"
#include "comm/link.h"
#include "comm/rehearse/rehearse.h"
#include "comm/rehearse/seams.h"
#include "engine/base/check.h"
#include "engine/base/wire.h"
#include "engine/config/validate.h"
#include "engine/data/dataset.h"
#include "engine/base/files.h"
#include "engine/plan/memory.h"

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

ScheduleKind kind_of(Schedule schedule) {
  switch (schedule) {
    case Schedule::gpipe: return ScheduleKind::gpipe;
    case Schedule::one_f_one_b: return ScheduleKind::one_f_one_b;
    case Schedule::interleaved_1f1b: return ScheduleKind::interleaved_1f1b;
    case Schedule::zb_h1: return ScheduleKind::zb_h1;
  }
  return ScheduleKind::one_f_one_b;
}

Recomputation recomputation_of(Recompute recompute) {
  switch (recompute) {
    case Recompute::none: return Recomputation::none;
    case Recompute::selective: return Recomputation::selective;
    case Recompute::full: return Recomputation::full;
  }
  return Recomputation::none;
}

std::string read_schedule(const std::string& path) {
  constexpr int64_t kLimitBytes = 64 << 20;
  try {
    return files::read_file(path, files::Owner::data, kLimitBytes);
  } catch (const DataError& error) {
    throw ConfigError("pipeline.schedule_file = {} cannot be read: {}", path, error.what());
  }
}

PipelineSchedule schedule_of(const RunConfig& config, int micro_batches, bool hides_hops) {
  const ScheduleShape shape{.stages = static_cast<int>(config.parallel.pipeline), .micro_batches = micro_batches,
                            .virtual_stages = static_cast<int>(config.pipeline.virtual_stages), .hides_hops = hides_hops};
  if (config.pipeline.schedule_file.empty()) return make_schedule(kind_of(config.pipeline.schedule), shape);
  return parse_schedule(read_schedule(config.pipeline.schedule_file), shape, config.pipeline.schedule_file);
}

/// How a model is dealt to stages, from what its pieces cost at the machine's rates.
struct Dealing {
  std::vector<int> layers;  // of each part: as the run file says, else balanced
  bool hides_hops = false;  // a hop takes long enough to be worth one more micro-batch alive per stage
  int64_t hop_ns = 0;
};

Dealing deal(const JobRequest& request, const models::ModelOptions& sizes, const Mesh& mesh) {
  constexpr double kWorthHiding = 0.01;  // of a micro-batch's pass through a stage
  const RunConfig& config = request.config;
  const int parts = static_cast<int>(config.parallel.pipeline * config.pipeline.virtual_stages);
  if (parts == 1) return {.layers = {static_cast<int>(sizes.layers)}};
  Buffers buffers;
  ModelSpec model = models::build_model(sizes, buffers);
  // What layers compute again counts: embedding and head do not.
  std::vector<Chunk> whole = cut_stage(model, buffers, make_schedule(ScheduleKind::one_f_one_b, {}), {model.layers}, 0);
  recompute(model, buffers, whole, recomputation_of(config.train.recompute));
  const comm::RooflinePrice price = price_of(config, request.machine, mesh);
  const auto seconds = [&](const Cost& cost) { return price.seconds(cost); };
  double pass_s = 0;
  for (const std::vector<uint32_t>* pieces : {&model.forward, &model.backward})
    for (uint32_t piece : *pieces)
      for (const Work& work : model.pieces[piece].works) pass_s += seconds(work.cost) / static_cast<double>(config.parallel.pipeline);
  const int64_t hop_elems = sizes.batch * sizes.tokens * sizes.width / (sizes.sequence_parallel ? sizes.tensor : 1);
  const comm::WireCost hop = comm::wire_cost(Op::send, Algorithm::direct, 2, hop_elems, sizes.dtype, price.link(Axis::pipeline));
  Dealing dealing{.layers = {config.pipeline.layers.begin(), config.pipeline.layers.end()},
                  .hides_hops = config.overlap.p2p && static_cast<double>(hop.latency_ns + hop.wire_ns) > kWorthHiding * 1e9 * pass_s,
                  .hop_ns = hop.latency_ns + hop.wire_ns};
  if (dealing.layers.empty()) dealing.layers = balanced_layers(model, parts, seconds);
  return dealing;
}

std::optional<DType> gather_dtype_of(DTypeChoice choice) {
  switch (choice) {
    case DTypeChoice::automatic: return {};
    case DTypeChoice::float32: return DType::f32;
    case DTypeChoice::bfloat16: return DType::bf16;
    case DTypeChoice::int8: return DType::u8;
  }
  return {};
}

PlanOptions plan_options(const JobRequest& request, const Layout& layout) {
  const RunConfig& config = request.config;
  return {.sizes = {.data = layout.data, .context = layout.context, .pipeline = layout.pipeline, .tensor = layout.tensor,
                    .data_inner = config.zero.stage > 0 ? static_cast<int>(config.zero.shard_size) : 0},
          .mesh_order = config.parallel.order,
          .rank = request.rank,
          .way = way_of(config.overlap.grad_reduce),
          .bucket_bytes = config.overlap.bucket_size_bytes,
          .first_bucket_bytes = config.overlap.first_bucket_size_bytes,
          .wire_dtype = config.comm.quantize == Quantize::int8 ? DType::u8 : config.comm.grad_dtype,
          .error_feedback = config.comm.error_feedback,
          .sums_by_exchange = request.on_gpus && config.comm.deterministic == Choice::yes && config.comm.grad_dtype == DType::bf16,
          .clip = config.optimizer.grad_clip > 0,
          .optimizer_per_bucket = config.overlap.optimizer_per_bucket,
          .zero_stage = static_cast<int>(config.zero.stage),
          .prefetch_depth = static_cast<int>(config.zero.prefetch_depth),
          .gather_dtype = gather_dtype_of(config.zero.gather_dtype),
          .persistent_elems = config.zero.persistence_threshold_bytes / size_of(config.train.dtype),
          .param_gather = config.overlap.param_gather,
          .reshard_after_forward = config.zero.reshard_after_forward,
          .double_buffer = config.optimizer.double_buffer == Choice::yes,
          .update_on_spine = !request.update_beside,
          .recompute = recomputation_of(config.train.recompute),
          .align_grad_reduce = config.overlap.align_grad_reduce};
}

}  // namespace

int64_t vocab_of(const RunConfig& config) {
  if (config.model.vocab_size > 0) return config.model.vocab_size;
  if (config.data.tokenizer == "bytes" && !data::names_shards(config.data.train)) return 256;
  return data::open_dataset({.train = config.data.train, .validation = config.data.validation,
                             .validation_fraction = config.data.validation_fraction, .tokenizer = config.data.tokenizer,
                             .sequence_length = config.train.sequence_length, .check = data::ShardCheck::size}).tokenizer->vocab_size();
}

models::ModelOptions model_options(const JobRequest& request) {
  const RunConfig& config = request.config;
  const Layout layout = resolve_layout(config, request.world);
  const slipstream::Batch batch = resolve_batch(config, layout.data);
  const PlanOptions planned = plan_options(request, layout);
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
          .tokens = config.train.sequence_length / layout.context,
          .context_ranks = layout.context,
          .context_rank = Mesh(planned.sizes, planned.mesh_order).coordinates(request.rank).context,
          .global_tokens = batch.global_batch_size * config.train.sequence_length,
          .micro_batches = static_cast<int>(batch.micro_batches),
          .ranks = layout.data * layout.context,
          // With sharded updates both shares of a tied table travel together.
          .split_tied_embedding = config.overlap.split_tied_embedding && (config.zero.stage == 0 || layout.data * layout.context == 1),
          .tensor = layout.tensor,
          .sequence_parallel = config.parallel.sequence_parallel,
          .tensor_chunks = models::token_chunks(config.train.micro_batch_size * config.train.sequence_length / layout.context, static_cast<int>(config.overlap.tensor_chunks),
                                                layout.tensor, config.parallel.sequence_parallel),
          .whole_layers = config.zero.stage >= 2,
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
  const comm::Link inter{static_cast<double>(machine.inter_bytes_per_second), machine.inter_latency_ns};
  for (Axis axis : {Axis::data, Axis::context, Axis::replica, Axis::pipeline, Axis::tensor, Axis::data_inner, Axis::data_outer, Axis::world})
    if (!emulated && mesh.crosses_nodes(axis, machine.ranks_per_node)) price.set_link(axis, inter, 1);
  return price;
}

namespace {

/// The job of one pipeline stage; that of the rank that asked as it sees it.
std::shared_ptr<Job> build_stage(const JobRequest& request, PlanOptions options, const models::ModelOptions& sizes, int stage) {
  const Mesh mesh(options.sizes, options.mesh_order);
  options.rank = stage == mesh.coordinates(request.rank).pipeline ? request.rank : mesh.rank({.pipeline = stage});
  models::ModelOptions own = sizes;
  own.tensor_index = mesh.coordinates(options.rank).tensor;
  Buffers buffers;
  ModelSpec model = models::build_model(own, buffers);
  return std::make_shared<Job>(build_job(std::move(model), std::move(buffers), options));
}

std::vector<std::shared_ptr<Job>> build_stages(const JobRequest& request, const PlanOptions& options, const models::ModelOptions& sizes) {
  std::vector<std::shared_ptr<Job>> jobs;
  for (int stage = 0; stage < options.sizes.pipeline; ++stage) jobs.push_back(build_stage(request, options, sizes, stage));
  return jobs;
}

/// ZB-H1 with the lags that suit what passes of these stages take. No stage takes more memory for it than the largest one takes with the published lags.
void lag_by_times(const JobRequest& request, PlanOptions& options, const models::ModelOptions& sizes, const comm::RooflinePrice& price, int64_t hop_ns,
                  std::vector<std::shared_ptr<Job>>& jobs) {
  if (request.config.pipeline.schedule != Schedule::zb_h1 || !request.config.pipeline.schedule_file.empty() || jobs.size() == 1) return;
  constexpr int kAttempts = 3;
  ScheduleShape shape = options.schedule.shape;
  const PlayTimes times = pass_times(jobs, request.spine_ns, price, hop_ns);
  int64_t limit_bytes = 0;
  for (const auto& job : jobs) limit_bytes = std::max(limit_bytes, job->buffers.total_bytes());
  std::vector<int> most = most_lags(shape);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    shape.lags = best_lags(shape, times, most);
    if (shape.lags.empty()) return;
    PlanOptions lagged = options;
    lagged.schedule = make_schedule(ScheduleKind::zb_h1, shape);
    std::vector<std::shared_ptr<Job>> others = build_stages(request, lagged, sizes);
    bool fits = true;
    for (size_t s = 0; s < jobs.size(); ++s) {
      const int64_t before_bytes = jobs[s]->buffers.total_bytes(), after_bytes = others[s]->buffers.total_bytes();
      if (after_bytes <= limit_bytes) continue;
      fits = false;
      const int published = static_cast<int>(s);
      const int64_t bytes_of_one = ceil_div(after_bytes - before_bytes, std::max(1, shape.lags[s] - published));
      most[s] = std::min(shape.lags[s] - 1, published + static_cast<int>((limit_bytes - before_bytes) / bytes_of_one));
    }
    if (!fits) continue;
    options = std::move(lagged);
    jobs = std::move(others);
    return;
  }
}

/// Buckets are for gradients that others wait for. Stages that end early have time to reduce a chunk at once: fewer, larger messages, and none under their
/// last backward pass. Not for what is encoded, which takes a buffer as wide as a bucket, nor for shards, whose parameters come back bucket by bucket.
void bucket_the_critical_path_only(const JobRequest& request, PlanOptions options, const models::ModelOptions& sizes, const comm::RooflinePrice& price,
                                   std::vector<std::shared_ptr<Job>>& jobs) {
  const int ranks = options.sizes.data * options.sizes.context;
  if (jobs.size() == 1 || ranks == 1 || options.zero_stage > 0 || options.way != ReduceWay::bucketed || options.wire_dtype != DType::f32) return;
  const Played played = played_schedule({jobs.begin(), jobs.end()}, price);
  for (size_t stage = 0; stage < jobs.size(); ++stage) {
    const Job& job = *jobs[stage];
    options.reduced_at_once = off_critical_path(options.schedule, played, static_cast<int>(stage), [&](int chunk) {
      const auto [begin, end] = job.backward_positions(chunk);
      int64_t elems = 0;
      for (const PlacedPart& placed : job.layout.parts)
        if (begin <= placed.ready_position && placed.ready_position < end) elems += placed.part.elems;
      const comm::WireCost wire = comm::wire_cost(Op::all_reduce, options.algorithm, ranks, elems, DType::f32, price.link(Axis::replica));
      return wire.latency_ns + wire.wire_ns + static_cast<int64_t>(1e9 * price.seconds({2 * elems, 4 * elems}));  // and its sum of squares
    });
    const bool any = std::find(options.reduced_at_once.begin(), options.reduced_at_once.end(), 1) != options.reduced_at_once.end();
    if (any) jobs[stage] = build_stage(request, options, sizes, static_cast<int>(stage));
  }
}

/// A step that would take days is a mistake in a unit, and virtual time ends soon after.
void require_travels_within_a_day(const std::vector<std::shared_ptr<Job>>& jobs, const comm::RooflinePrice& price, bool emulated) {
  constexpr double kDay_s = 86400;
  for (const auto& job : jobs) {
    double bytes = 0, seconds = 0, slowest = 0;
    for (const Task& task : job->train.tasks) {
      if (!is_communication(task.op)) continue;
      const Axis axis = job->channels[task.channel].axis;
      const double rate = price.link(axis).bytes_per_second;
      const auto sent = static_cast<double>(comm::wire_bytes(task.op, task.algorithm, job->mesh.group_size(axis), task.elems, task.dtype));
      if (rate <= 0 || sent <= 0) continue;
      bytes += sent;
      seconds += sent / rate;
      slowest = slowest > 0 ? std::min(slowest, rate) : rate;
    }
    if (seconds > kDay_s)
      throw ConfigError("[plan] the {} that a rank sends in a step would travel for {:.3g} days at {}/s. Raise {}.", format_bytes(static_cast<int64_t>(bytes)),
                        seconds / kDay_s, format_bytes(static_cast<int64_t>(slowest)), emulated ? "comm.emulate.bandwidth" : "the rates of the machine's links");
  }
}

/// Jobs whose plans have no order yet; what is known of `finished` before that.
std::vector<std::shared_ptr<Job>> draft(const JobRequest& request, FinishedJob& finished) {
  const Layout layout = resolve_layout(request.config, request.world);
  const slipstream::Batch batch = resolve_batch(request.config, layout.data);
  PlanOptions options = plan_options(request, layout);
  models::ModelOptions sizes = model_options(request);
  require_hope(sizes, options, request.machine);
  const Mesh mesh(options.sizes, options.mesh_order);
  const Dealing dealing = deal(request, sizes, mesh);
  options.schedule = schedule_of(request.config, static_cast<int>(batch.micro_batches), dealing.hides_hops);
  options.layers = dealing.layers;
  sizes.split_backward = options.schedule.splits_backward;
  sizes.cuts = cuts_of(options.layers);
  finished.micro_batches = batch.micro_batches;
  finished.global_batch = batch.global_batch_size;
  // Whole gradients are reduced once in a step and add in the order of stage 0; shards are reduced in every micro-batch.
  options.accumulate_unsharded = options.zero_stage == 2 && batch.micro_batches > 1 && request.machine.memory_bytes > 0;
  std::vector<std::shared_ptr<Job>> jobs = build_stages(request, options, sizes);
  const bool fits = std::all_of(jobs.begin(), jobs.end(), [&](const auto& job) { return job->buffers.total_bytes() <= request.machine.memory_bytes; });
  if (options.accumulate_unsharded && !fits) {
    options.accumulate_unsharded = false;
    jobs = build_stages(request, options, sizes);
  }
  const comm::RooflinePrice price = price_of(request.config, request.machine, mesh);
  require_travels_within_a_day(jobs, price, request.config.comm.emulate.bandwidth_bytes_per_second > 0);
  lag_by_times(request, options, sizes, price, dealing.hop_ns, jobs);
  bucket_the_critical_path_only(request, options, sizes, price, jobs);
  for (const auto& job : jobs) finished.stages.push_back(job);
  finished.job = jobs[static_cast<size_t>(mesh.coordinates(request.rank).pipeline)];
  return jobs;
}

/// The update where the request says, with as many copies of the weights.
FinishedJob finish_job(const JobRequest& request) {
  FinishedJob finished;
  const std::vector<std::shared_ptr<Job>> jobs = draft(request, finished);
  const comm::RooflinePrice price = price_of(request.config, request.machine, jobs[0]->mesh);
  comm::MeasuredPrice told(price);
  for (const auto& job : jobs)
    if (request.spine_ns) {
      std::vector<int64_t> item_ns = request.spine_ns(*job);
      item_ns.resize(job->train.size(), -1);
      told.set(job->train, std::move(item_ns));
    }
  finished.proof = finish_plans(jobs, told, request.proves);
  return finished;
}

JobRequest with_update(const JobRequest& request, bool beside, bool twice, bool proves) {
  JobRequest asked = request;
  asked.update_beside = beside;
  asked.proves = proves;
  asked.config.optimizer.double_buffer = twice ? Choice::yes : Choice::no;
  return asked;
}

/// Steps in a row in virtual time: from one's first work to the next one's. Negative: it deadlocks.
int64_t step_period_ns(const JobRequest& request, const FinishedJob& finished, bool replayed) {
  const comm::RooflinePrice price = price_of(request.config, request.machine, finished.job->mesh);
  const comm::Rehearsal played = comm::rehearse(finished.job->mesh, finished.job->channels, runs_of(finished.stages, 3), price,
                                                {.gate = comm::Gate::launch_order, .replayed = replayed});
  return played.finished ? played.ranks[0].step_period_ns(1) : -1;
}

/// Works that a step launches, on the stage that launches most.
int64_t launches_of_step(const FinishedJob& finished) {
  int64_t most = 0;
  for (const auto& job : finished.stages) {
    int64_t launches = std::ssize(job->train.tasks);
    for (const SpineItem& item : job->train.spine) launches += item.op == Op::compute ? std::ssize(job->model.pieces[item.piece].works) : 1;
    most = std::max(most, launches);
  }
  return most;
}

int64_t most_bytes(const FinishedJob& finished) { return largest_stage(finished).buffers.total_bytes(); }

}  // namespace

const Job& largest_stage(const FinishedJob& finished) {
  return **std::max_element(finished.stages.begin(), finished.stages.end(),
                            [](const auto& a, const auto& b) { return a->buffers.total_bytes() < b->buffers.total_bytes(); });
}

comm::Proof finish_plans(const std::vector<std::shared_ptr<Job>>& stages, const comm::Price& price, bool proves) {
  const Job& first = *stages[0];
  comm::Proof ordered;
  for (Plan Job::*plan : {&Job::prime, &Job::train, &Job::evaluate}) {
    std::vector<comm::Stage> of_all;
    for (const auto& job : stages) of_all.push_back({&((*job).*plan), &job->buffers});
    ordered.include(comm::finish(of_all, first.mesh, first.channels, price, proves ? comm::Checks::orders : comm::Checks::none));
  }
  if (first.options.double_buffer)
    for (const auto& job : stages) swap_buffers(*job);
  if (!proves) return ordered;
  std::vector<comm::StageRuns> rows;
  for (const auto& job : stages) {
    // Three steps and three evaluations in a row, and every seam between them. Evaluations after an odd number of steps find two copies of the weights exchanged.
    const bool swaps = job->options.double_buffer;
    const Plan *step = &job->train, *other = swaps ? &job->train_swapped : step, *evaluate = swaps ? &job->evaluate_swapped : &job->evaluate;
    rows.push_back({{&job->prime, step, evaluate, evaluate, evaluate, other, step, other}, &job->buffers});
  }
  comm::Proof proof = comm::prove(rows, first.mesh, first.channels, price);
  proof.include(std::move(ordered));
  return proof;
}

void require_holds(const comm::Proof& proof) {
  if (proof.holds()) return;
  throw PlanError("[plan] the plan does not hold and nothing was run: {}. Please report it with the run file; slipstream check prints all that was found.",
                  !proof.deadlock.empty() ? "deadlock under " + proof.deadlock : proof.hazards[0].sentence());
}

FinishedJob build_finished_job(const JobRequest& request) {
  FinishedJob finished = build_proved_job(request);
  if (request.proves) require_holds(finished.proof);
  return finished;
}

FinishedJob build_proved_job(const JobRequest& request) {
  const Choice copies = request.config.optimizer.double_buffer, graph = request.config.device.graph;
  const bool two_asked = copies == Choice::yes;
  // On a CPU's compute stream an update comes after every reader of the weights anyway (docs/notes/0002, 0014).
  FinishedJob first = finish_job(with_update(request, two_asked, two_asked, request.proves));
  if (!request.on_gpus) return first;
  struct Way {
    bool beside, twice;
    int64_t graph_ns = -1, task_by_task_ns = -1, launches = 0;
  };
  std::vector<Way> ways{{two_asked, two_asked}};
  if (!two_asked) ways.push_back({true, false});
  // In stage 3 no update waits for a reader.
  if (copies == Choice::automatic && first.job->options.zero_stage < 3) ways.push_back({true, true});
  const Way *by_graph = ways.data(), *by_task = ways.data();
  for (Way& way : ways) {
    const FinishedJob finished = &way == ways.data() ? first : finish_job(with_update(request, way.beside, way.twice, false));
    if (&way != ways.data() && way.twice && most_bytes(finished) > request.machine.memory_bytes) continue;
    way.graph_ns = step_period_ns(request, finished, true);
    way.task_by_task_ns = step_period_ns(request, finished, false);
    way.launches = launches_of_step(finished);
    if (way.task_by_task_ns < 0) continue;
    if (way.graph_ns < by_graph->graph_ns) by_graph = &way;
    if (way.task_by_task_ns < by_task->task_by_task_ns) by_task = &way;
  }
  Replay replay{.graph_ns = by_graph->graph_ns, .task_by_task_ns = by_task->task_by_task_ns, .launches = by_task->launches, .launch_ns = request.machine.launch_ns};
  replay.taken = graph == Choice::yes || (graph == Choice::automatic && replay.graph_ns - replay.task_by_task_ns <= replay.launches_ns());
  const Way& best = replay.taken ? *by_graph : *by_task;
  FinishedJob finished = &best == ways.data() ? std::move(first) : finish_job(with_update(request, best.beside, best.twice, request.proves));
  finished.replay = replay;
  return finished;
}

int64_t saved_by_sequence_parallelism(const JobRequest& request, const FinishedJob& finished) {
  if (!request.config.parallel.sequence_parallel) return 0;
  JobRequest asked = request;
  asked.config.parallel.sequence_parallel = false;
  FinishedJob without;
  draft(asked, without);
  int64_t saved_bytes = 0;
  for (size_t s = 0; s < without.stages.size(); ++s)
    saved_bytes = std::max(saved_bytes, without.stages[s]->buffers.total_bytes() - finished.stages[s]->buffers.total_bytes());
  return saved_bytes;
}

std::vector<comm::RankRuns> runs_of(const std::vector<std::shared_ptr<const Job>>& stages, size_t runs) {
  std::vector<comm::RankRuns> ranks;
  for (size_t s = 0; s < stages.size(); ++s) {
    std::vector<const Plan*> plans(runs, &stages[s]->train);
    for (size_t run = 1; run < runs && stages[s]->options.double_buffer; run += 2) plans[run] = &stages[s]->train_swapped;
    ranks.push_back({.rank = stages[s]->mesh.rank({.pipeline = static_cast<int>(s)}), .runs = plans,
                     .seams = comm::link_all(plans, stages[s]->channels)});
  }
  return ranks;
}

Played played_schedule(const std::vector<std::shared_ptr<const Job>>& stages, const comm::RooflinePrice& price) {
  return play(stages[0]->options.schedule, {.use_ns = [&](int stage, const Use& use) {
                const Job& job = *stages[static_cast<size_t>(stage)];
                double seconds = 0;
                for (uint32_t piece : job.chunks[static_cast<size_t>(use.chunk)].pieces(use.pass))
                  for (const Work& work : job.model.pieces[piece].works) seconds += price.seconds(work.cost);
                return std::max<int64_t>(1, static_cast<int64_t>(seconds * 1e9));
              }, .hop_ns = {}});
}

std::string schedule_line(const RunConfig& config, const std::vector<std::shared_ptr<const Job>>& stages, const Played& played) {
  const PlanOptions& options = stages[0]->options;
  const ScheduleShape& shape = options.schedule.shape;
  std::string layers;
  for (int part : options.layers) layers += fmt::format("{}{}", layers.empty() ? "" : " + ", part);
  std::string line = fmt::format("pipeline: {} over {} stages{} of {} layers, {} micro-batch{}: the busiest stage idles {:.0f}% of its compute time",
                                 config.pipeline.schedule_file.empty() ? name_of(kind_of(config.pipeline.schedule)) : config.pipeline.schedule_file,
                                 shape.stages, shape.virtual_stages > 1 ? fmt::format(" x {}", shape.virtual_stages) : "", layers,
                                 shape.micro_batches, shape.micro_batches == 1 ? "" : "es", 100 * played.bubble());
  if (shape.hides_hops && shape.virtual_stages == 1) line += ", with more micro-batches alive so that hops travel under compute";
  if (!shape.lags.empty()) line += fmt::format(", weight gradients lag by {} micro-batches on the stages, by what passes take (published: by the stage's number)", fmt::join(shape.lags, ", "));
  if (shape.micro_batches < shape.stages)
    line += fmt::format("; {} micro-batches are too few to fill {} stages: raise train.global_batch_size or lower train.micro_batch_size",
                        shape.micro_batches, shape.stages);
  return line;
}

std::vector<ZeroMemory> zero_memory(const JobRequest& request) {
  std::vector<ZeroMemory> table;
  JobRequest asked = request;
  asked.config.zero = Zero{};  // as in the paper: parameters travel as they are computed with, and none persists
  asked.config.comm.error_feedback = false;
  asked.config.overlap.split_tied_embedding = false;  // whose second share arrives from all ranks: not a state
  asked.config.optimizer.double_buffer = Choice::no;
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
      for (size_t b = 0; b < job.homes.size(); ++b)
        if (job.layout.buckets[b].layer < 0) row.outside_bytes += (stage >= 2 ? job.homes[b].gradients.size_bytes : 0) + (stage >= 3 ? job.homes[b].values.size_bytes : 0);
      const int64_t elems = job.model.parameter_elems();
      const StateBytes states = state_bytes(job.model.dtype, stage);
      row.formula_bytes = elems * states.whole + elems * states.shared / ranks;
      table.push_back(row);
    }
  return table;
}

std::vector<UpdatePlace> update_places(const JobRequest& request, const FinishedJob& planned, double planned_step_ms) {
  std::vector<UpdatePlace> places;
  const PlanOptions& chosen = planned.job->options;
  for (const char* name : {"on the compute stream", "on a stream of its own", "double-buffered"}) {
    const bool beside = !places.empty(), twice = places.size() == 2;
    if (twice && chosen.zero_stage >= 3) break;
    if (chosen.double_buffer == twice && chosen.update_on_spine == !beside) {
      places.push_back({.name = name, .memory_bytes = most_bytes(planned), .step_ms = planned_step_ms, .is_planned = true});
      continue;
    }
    const FinishedJob finished = finish_job(with_update(request, beside, twice, false));
    places.push_back({.name = name, .memory_bytes = most_bytes(finished), .step_ms = std::max(0.0, static_cast<double>(step_period_ns(request, finished, planned.replay.taken)) / 1e6)});
  }
  return places;
}

std::vector<std::string> remarks(const RunConfig& config, const Machine& machine, const FinishedJob& finished) {
  std::vector<std::string> lines;
  const Job& job = *finished.job;
  const int64_t stage = job.options.zero_stage, parts = job.options.schedule.parts();
  if (config.zero.stage == 2 && stage > 0 && finished.micro_batches > 1)
    lines.push_back(stage < 2 ? fmt::format("zero.stage 2: {} micro-batches accumulate in whole gradients, which fit, and are reduced once (the bits of stage 0)",
                                            finished.micro_batches)
                              : fmt::format("zero.stage 2: {} micro-batches are reduced one by one and accumulate in shards, because {} (rounded in another order than "
                                            "stage 0)", finished.micro_batches,
                                            machine.memory_bytes > 0 ? fmt::format("whole gradients do not fit in {}", format_bytes(machine.memory_bytes))
                                                                     : "nothing says how much memory a rank has"));
  const std::vector<Bucket>& buckets = job.layout.buckets;
  const std::vector<ParameterSpec>& parameters = job.model.parameters;
  const auto larger = std::count_if(parameters.begin(), parameters.end(), [&](const ParameterSpec& p) { return 4 * p.elems > job.options.bucket_bytes; });
  if (stage >= 2 && std::any_of(buckets.begin(), buckets.end(), [&](const Bucket& b) { return b.layer >= 0 && 4 * b.elems > job.options.bucket_bytes; }))
    lines.push_back(fmt::format("zero.stage {}: a layer is one bucket; overlap.bucket_size = {} cuts the rest only", stage, format_bytes(job.options.bucket_bytes)));
  else if (larger > 0 && job.options.way == ReduceWay::bucketed && stage < 2 && job.mesh.group_size(Axis::replica) > 1)
    lines.push_back(fmt::format("{} of {} parameters are larger than overlap.bucket_size = {}: each travels as one bucket, with what is before it", larger,
                                parameters.size(), format_bytes(job.options.bucket_bytes)));
  if (config.pipeline.virtual_stages > 1 && config.pipeline.layers.empty() && config.model.layers % parts != 0)
    lines.push_back(fmt::format("{} layers do not divide by the {} x {} parts of parallel.pipeline and pipeline.virtual_stages: {}, so that parts take about as "
                                "long; pipeline.layers deals them otherwise", config.model.layers, config.parallel.pipeline, config.pipeline.virtual_stages,
                                fmt::join(job.options.layers, " + ")));
  return lines;
}

WireBytes wire_bytes_of_step(const Job& job) {
  WireBytes bytes;
  for (const Task& task : job.train.tasks)
    if (task.bucket >= 0 && is_communication(task.op))
      bytes.sent += comm::wire_bytes(task.op, task.algorithm, job.mesh.group_size(job.channels[task.channel].axis), task.elems, task.dtype);
  const int64_t stage = job.options.zero_stage, ranks = job.mesh.group_size(job.shard_axis()), elems = job.model.parameter_elems();
  const int64_t times = stage >= 2 ? job.buffers.micro_batches : 1;
  const int64_t gradients = (stage == 0 ? 2 : times) * encoded_bytes(elems, job.options.wire_dtype);
  const int64_t parameters = (stage == 0 ? 0 : stage < 3 ? 1 : 2 * times) * encoded_bytes(elems, job.gather_dtype());
  bytes.theory = (gradients + parameters) * (ranks - 1) / ranks;
  // Across groups that share: all of a shard, once in a step.
  if (const int64_t groups = job.mesh.group_size(Axis::data_outer); job.is_hybrid())
    bytes.theory += 2 * elems / ranks * (job.options.wire_dtype == DType::bf16 ? 2 : 4) * (groups - 1) / groups;
  return bytes;
}

double rehearsed_step_ms(const std::vector<std::shared_ptr<const Job>>& stages, const std::vector<std::vector<int64_t>>& item_ns,
                         const comm::Price& otherwise, bool replayed) {
  comm::MeasuredPrice price(otherwise);
  for (size_t s = 0; s < stages.size(); ++s) {
    std::vector<int64_t> local = item_ns[s];
    for (ItemId i = 0; i < stages[s]->train.size(); ++i)
      if (is_communication(stages[s]->train[i].op)) local[i] = -1;
    if (stages[s]->options.double_buffer) price.set(stages[s]->train_swapped, local);
    price.set(stages[s]->train, std::move(local));
  }
  const comm::Rehearsal rehearsal = comm::rehearse(stages[0]->mesh, stages[0]->channels, runs_of(stages, 3), price, {.replayed = replayed});
  return rehearsal.finished ? static_cast<double>(rehearsal.ranks[0].step_period_ns(1)) / 1e6 : -1;
}

Machine machine_of(const RunConfig& config, const std::string& path, int threads, int ranks_on_host) {
  if (!path.empty()) return load_machine(path);
  if (!config.device.machine.empty()) return load_machine(config.device.machine);
  return this_host(threads, ranks_on_host);
}

int threads_of(const RunConfig& config, int ranks_on_host) {
  if (config.device.threads > 0) return static_cast<int>(config.device.threads);
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const int cores = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
  return std::max(1, cores / std::max(1, ranks_on_host));
}

}  // namespace slipstream::cli

// SPDX-License-Identifier: Apache-2.0
// Translates the keys of the run file. Decisions here use costs, and never a plan.

#include "trainer/planner/options/plan_options.h"

#include <sched.h>

#include <algorithm>
#include <optional>

#include "comm/link.h"
#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/plural.h"
#include "engine/config/host_times.h"
#include "engine/config/multipliers.h"
#include "engine/config/validate.h"
#include "engine/data/datasets/dataset.h"
#include "engine/data/datasets/foreign_tokens.h"
#include "engine/data/tokenizers/make_tokenizer.h"

namespace slipstream::planner {
namespace {

ScheduleShape shape_of(const RunConfig& config, int micro_batches) {
  return {.stages = static_cast<int>(config.parallel.pipeline),
          .micro_batches = micro_batches,
          .virtual_stages = static_cast<int>(config.pipeline.virtual_stages)};
}

std::optional<Format> gather_wire_of(DTypeChoice choice) {
  switch (choice) {
    case DTypeChoice::automatic:
      return {};
    case DTypeChoice::float32:
      return DType::f32;
    case DTypeChoice::bfloat16:
      return DType::bf16;
    case DTypeChoice::int8:
      return kInt8;
  }
  return {};
}

Format reduce_wire_of(const Comm& comm) {
  if (comm.quantize == Quantize::int8) return kInt8;
  return comm.grad_dtype == DTypeChoice::bfloat16 ? DType::bf16 : DType::f32;
}

/// Returns true for a weight of attention or of the feed-forward network.
bool is_matrix_of_block(const ModelSpec& model, const ParameterSpec& parameter) {
  return parameter.tensors.front().shape.size() == 2 && parameter.layer >= 0 && parameter.layer < model.layers;
}

/// An optimizer of whole matrices updates those of the blocks. The other parameters go to the first optimizer.
std::vector<GroupRule> groups_of(const Optimizer& optimizer) {
  const OptimizerSpec* spec = &optimizers()[static_cast<size_t>(optimizer.name)];
  if (spec->granularity == Granularity::element) return {{"all", spec}};
  const double factor = optimizer.learning_rate > 0 ? optimizer.adamw_learning_rate / optimizer.learning_rate : 1;
  return {{"matrices", spec, is_matrix_of_block}, {"others", &optimizers().front(), nullptr, factor}};
}

std::string read_schedule(const std::string& path) {
  constexpr int64_t kLimitBytes = 64 << 20;
  try {
    return files::read_file(path, files::Owner::data, kLimitBytes);
  } catch (const DataError& error) {
    throw ConfigError("pipeline.schedule_file = {} cannot be read: {}", path, error.what());
  }
}

}  // namespace

void require_layout(const RunConfig& config, int world) {
  std::optional<std::string> text;  // of the schedule file, which is read once for all candidate layouts
  resolve_layout(config, world, [&](const RunConfig& tried, const slipstream::Batch& batch) {
    const ScheduleShape shape = shape_of(tried, static_cast<int>(batch.micro_batches));
    if (const std::string& file = tried.pipeline.schedule_file; !file.empty()) {
      if (!text) text = read_schedule(file);
      parse_schedule(*text, shape, file);
    } else {
      require_shape(tried.pipeline.schedule, shape);
    }
  });
}

PipelineSchedule schedule_of(const ResolvedConfig& resolved, const ScheduleChoice& choice) {
  const RunConfig& config = *resolved;
  ScheduleShape shape = shape_of(config, static_cast<int>(resolved.batch().micro_batches));
  if (const std::string& file = config.pipeline.schedule_file; !file.empty())
    return parse_schedule(read_schedule(file), shape, file);
  if (config.overlap.paired_passes && config.parallel.pipeline == 1) return make_paired_schedule(shape.micro_batches);
  shape.hides_transfers = choice.more_in_flight;
  shape.lags = choice.lags;
  return make_schedule(config.pipeline.schedule, shape);
}

StagePlacement stage_placement(const ResolvedConfig& config) {
  if (!config->pipeline.schedule_file.empty()) return schedule_of(config, {}).placement;
  return stage_placement(config->pipeline.schedule, static_cast<int>(config->parallel.pipeline),
                         static_cast<int>(config->pipeline.virtual_stages));
}

std::string schedule_name(const RunConfig& config) {
  return config.pipeline.schedule_file.empty() ? name_of(config.pipeline.schedule) : config.pipeline.schedule_file;
}

LayerPartition partition_layers(const JobRequest& request, const models::ModelOptions& sizes, const Mesh& mesh) {
  const RunConfig& config = *request.config;
  const int parts = static_cast<int>(config.parallel.pipeline * config.pipeline.virtual_stages);
  if (parts == 1) return {.layers = {static_cast<int>(sizes.layers)}};
  Buffers buffers;
  ModelSpec model = models::build_model(sizes, buffers);
  // Recomputed work counts for layers, but embedding and head recompute nothing. If a number of layers recomputes, all
  // parts recompute the same amount.
  std::vector<Chunk> whole = cut_stage(model, buffers, make_schedule(ScheduleKind::one_f_one_b, {}), {model.layers}, 0);
  if (config.train.recompute_layers == 0) recompute(model, buffers, whole, config.train.recompute);
  const comm::RooflinePrice price = price_of(config, request.machine, mesh);
  const auto seconds = [&](const Cost& cost) { return price.seconds(cost); };
  const int64_t hop_elems = sizes.batch * sizes.tokens * sizes.width / (sizes.sequence_parallel ? sizes.tensor : 1);
  const comm::WireCost hop =
      comm::wire_cost(Op::send, Algorithm::direct, 2, hop_elems, sizes.dtype, price.link(Axis::pipeline));
  LayerPartition partition{.layers = {config.pipeline.layers.begin(), config.pipeline.layers.end()},
                           .transfer_ns = hop.latency_ns + hop.wire_ns};
  if (partition.layers.empty()) partition.layers = balanced_layers(model, parts, seconds);
  return partition;
}

int64_t bucket_bytes_of(const RunConfig& config) {
  return config.overlap.bucket_size_bytes > 0 ? config.overlap.bucket_size_bytes : Overlap{}.bucket_size_bytes;
}

PlanOptions plan_options(const JobRequest& request, const UpdatePlacement& update) {
  const RunConfig& config = *request.config;
  return {.sizes = request.config.layout(),
          .mesh_order = config.parallel.order,
          .rank = request.rank,
          .reduce_mode = config.overlap.grad_reduce,
          .bucket_bytes = bucket_bytes_of(config),
          .first_bucket_bytes = config.overlap.first_bucket_size_bytes,
          .max_inflight_buckets = config.overlap.max_inflight_buckets,
          .reduce_wire = reduce_wire_of(config.comm),
          .error_feedback = config.comm.error_feedback,
          // NCCL would round after every addition.
          .sums_by_exchange = request.config.on_gpus() && reduce_wire_of(config.comm) == DType::bf16,
          .groups = groups_of(config.optimizer),
          .multipliers = parse_multipliers(config.optimizer.multipliers),
          .clip = config.optimizer.grad_clip > 0 || config.train.on_nan == OnNan::skip,
          .skips = config.train.on_nan == OnNan::skip,
          .optimizer_per_bucket = config.overlap.optimizer_per_bucket,
          .update_product_dtype = request.config.on_gpus() ? DType::bf16 : DType::f32,  // for tensor cores
          .sharding = config.zero.sharding(),
          .prefetch_depth = static_cast<int>(config.zero.prefetch_depth),
          .gather_wire = gather_wire_of(config.zero.gather_dtype),
          .persistent_elems = config.zero.persistence_threshold_bytes / size_of(config.train.dtype),
          .param_gather = config.overlap.param_gather,
          .reshard_after_forward = config.zero.reshard_after_forward,
          .double_buffer = update.double_buffer,
          .update_on_spine = !update.beside,
          .recompute = config.train.recompute,
          .recompute_layers = static_cast<int>(config.train.recompute_layers),
          .align_grad_reduce = config.overlap.align_grad_reduce,
          .snapshots = config.checkpoint.async && config.checkpoint.interval + config.checkpoint.interval_minutes > 0,
          .snapshots_beside = request.config.on_gpus()};
}

data::DatasetOptions dataset_options(const RunConfig& config, data::ShardCheck check, int threads) {
  return {.train = config.data.train,
          .sources = config.data.sources,
          .weights = config.data.weights,
          .validation = config.data.validation,
          .validation_fraction = config.data.validation_fraction,
          .tokenizer = config.data.tokenizer,
          .format = config.data.format,
          .formats = config.data.formats,
          .text_key = config.data.text_key,
          .vocab_size = config.model.vocab_size,
          .sequence_length = config.train.sequence_length,
          .threads = threads,
          .documents = config.data.document_mask,
          .check = check};
}

int64_t vocab_of(const RunConfig& config) {
  if (config.model.vocab_size > 0) return config.model.vocab_size;
  const auto is_text = [](const std::string& path, DataFormat named) {
    const DataFormat format = data::format_of(path, named);
    return format == DataFormat::text || format == DataFormat::jsonl;
  };
  const std::vector<std::string>& sources = config.data.sources;
  bool all_text =
      config.data.tokenizer == "bytes" && (!sources.empty() || is_text(config.data.train, config.data.format));
  for (size_t i = 0; all_text && i < sources.size(); ++i)
    all_text = is_text(sources[i], i < config.data.formats.size() ? config.data.formats[i] : config.data.format);
  if (all_text) return 256;
  if (data::names_tokenizer_file(config.data.tokenizer))
    return data::load_tokenizer_file(config.data.tokenizer)->vocab_size();
  return data::open_dataset(dataset_options(config, data::ShardCheck::size)).tokenizer->vocab_size();
}

static kernels::RopeScaling rope_scaling_of(const Model& model) {
  if (model.rope_scaling == RopeScalingKind::none) return {};
  return {.factor = static_cast<float>(model.rope_scaling_factor),
          .low_freq_factor = static_cast<float>(model.rope_low_freq_factor),
          .high_freq_factor = static_cast<float>(model.rope_high_freq_factor),
          .original_context = model.rope_original_context};
}

/// Returns the layers of a list that may differ from the others: none if the list has all layers.
static std::vector<int64_t> some_of(const std::vector<int64_t>& layers, const Model& model) {
  return std::ssize(layers) < model.layers ? layers : std::vector<int64_t>();
}

static ExpertOptions experts_of(const Model& model) {
  ExpertOptions experts = model.experts;
  experts.layers = some_of(experts.layers, model);
  return experts;
}

models::ModelOptions model_options(const JobRequest& request) {
  const RunConfig& config = *request.config;
  const MeshSizes& layout = request.config.layout();
  return {.family = config.model.family,
          .layers = config.model.layers,
          .heads = config.model.heads,
          .kv_heads = config.model.kv_heads,
          .head_dim = config.model.head_dim,
          .width = config.model.width,
          .ffn_width = config.model.ffn_width,
          .context = config.model.context,
          .vocab = config.model.vocab_size,
          .tie_embeddings = config.model.tie_embeddings == Choice::yes,
          .rope_theta = static_cast<float>(config.model.rope_theta),
          .rope_scaling = rope_scaling_of(config.model),
          .documents = config.data.document_mask,
          .window = config.model.sliding_window,
          .window_layers = some_of(config.model.window_layers, config.model),
          .experts = experts_of(config.model),
          .norm_eps = static_cast<float>(config.model.norm_eps),
          .dropout = {.embedding = config.model.embd_pdrop,
                      .residual = config.model.resid_pdrop,
                      .attention = config.model.attn_pdrop,
                      .seed = static_cast<uint64_t>(config.train.seed)},
          .dtype = config.train.dtype,
          .batch = config.train.micro_batch_size,
          .tokens = config.train.sequence_length / layout.context,
          .context_ranks = layout.context,
          .context_rank = Mesh(request.config.layout(), config.parallel.order).coordinates(request.rank).context,
          .global_tokens = config.train.global_batch_size * config.train.sequence_length,
          .micro_batches = static_cast<int>(request.config.batch().micro_batches),
          .ranks = layout.replicas(),
          .split_tied_embedding = config.overlap.split_tied_embedding,
          .tensor = layout.tensor,
          .expert_ranks = layout.expert,
          .expert_exchange = config.parallel.expert_exchange,
          .sequence_parallel = config.parallel.sequence_parallel,
          .tensor_chunks = models::token_chunks(
              config.train.micro_batch_size * config.train.sequence_length / layout.context,
              static_cast<int>(config.overlap.tensor_chunks), layout.tensor, config.parallel.sequence_parallel),
          .whole_layers = config.zero.sharding().gradients,
          .head_chunk_bytes = bucket_bytes_of(config),
          .head_tokens = config.train.head_tokens};
}

namespace {

/// Returns prices by shape, if the machine file has them for a GPU.
std::optional<comm::KernelRates> kernel_rates(const RunConfig& config, const Machine& machine, int ranks) {
  if (machine.attention_efficiency <= 0) return {};
  // Cards differ in the clock that their power allows. The clock of the memory is the same on all of them.
  const double slowest = comm::slowest_factor(machine.speed_spread, ranks);
  const bool narrow = config.train.dtype == DType::bf16;
  const Software& software = machine.software;
  return comm::KernelRates{
      .flops_per_second = narrow ? machine.flops_per_second_bf16 : machine.flops_per_second_f32,
      .fp8_flops_per_second = narrow && software.fp8 ? machine.flops_per_second_fp8 : 0,
      .bytes_per_second = static_cast<double>(machine.bytes_per_second),
      .multiprocessors = machine.multiprocessors,
      .product_efficiency = machine.matmul_efficiency / slowest,
      .fp8_efficiency = (machine.fp8_efficiency > 0 ? machine.fp8_efficiency : machine.matmul_efficiency) / slowest,
      .depth_overhead = machine.depth_overhead,
      .attention_efficiency = std::min(1.0, machine.attention_efficiency * software.attention_factor) / slowest,
      .fused_attention = !software.stores_scores,
      .moved_bytes_factor = software.moved_bytes_factor};
}

/// Returns the ranks of a group of `axis` that share a node.
comm::GroupSpan span_of(const Mesh& mesh, Axis axis, int64_t ranks_per_node) {
  const std::vector<int> group = mesh.group(axis, 0);
  const auto here = std::count_if(group.begin(), group.end(), [&](int rank) { return rank < ranks_per_node; });
  return {.ranks = static_cast<int>(group.size()), .per_node = std::max(1, static_cast<int>(here))};
}

/// Returns the cores of a calibrated host.
comm::SharedCores shared_cores(const RunConfig& config, const Machine& machine, const Mesh& mesh) {
  if (!machine.measured || computes_on_gpus(config, machine)) return {};
  return {.cores = machine.measured->cores,
          .ranks = static_cast<int>(std::min<int64_t>(mesh.world(), machine.ranks_per_node)),
          .threads = machine.threads};
}

}  // namespace

comm::RooflinePrice price_of(const RunConfig& config, const Machine& machine, const Mesh& mesh) {
  const double peak = config.train.dtype == DType::bf16 ? machine.flops_per_second_bf16 : machine.flops_per_second_f32;
  // The rates of snapshots, counting both read and written bytes. A GPU copies to pinned memory at 20 GB/s through 16
  // lanes of PCIe 4. On a host, one thread copies; engine/config/machine.cpp has the source of its 10 GB/s.
  constexpr double kGpuSnapshots = 2 * 20e9, kThread = 10e9;
  const double memory_rate = static_cast<double>(machine.bytes_per_second);
  const bool emulated = config.comm.emulate.bandwidth_bytes_per_second > 0,
             has_gpus = machine.multiprocessors > 0 || machine.device == MachineDevice::cuda;
  const comm::Rates rates{.flops_per_second = peak * machine.matmul_efficiency,
                          .bytes_per_second = memory_rate,
                          .launch_ns = machine.launch_ns,
                          .multiprocessors = machine.multiprocessors,
                          .snapshot_bytes_per_second = has_gpus ? kGpuSnapshots : std::min(memory_rate, kThread),
                          .seal_bytes_per_second = std::min(memory_rate, kThread),
                          .kernels = kernel_rates(config, machine, mesh.world()),
                          .host_ns = machine.software.host_ns,
                          .measured = computes_on_gpus(config, machine) ? nullptr : machine.measured,
                          .shared = shared_cores(config, machine, mesh),
                          .emulated = emulated};
  const comm::Link intra =
      emulated ? comm::Link{static_cast<double>(config.comm.emulate.bandwidth_bytes_per_second),
                            config.comm.emulate.latency_ns}
               : comm::Link{static_cast<double>(machine.intra_bytes_per_second), machine.intra_latency_ns};
  comm::RooflinePrice price(rates, intra);
  const comm::Link inter{static_cast<double>(machine.inter_bytes_per_second), machine.inter_latency_ns};
  const comm::Fabric fabric{
      .node = intra, .network = inter, .reduce_bytes_per_second = static_cast<double>(machine.reduce_bytes_per_second)};
  for (size_t a = 0; a < kAxes && !emulated; ++a) {
    const Axis axis = static_cast<Axis>(a);
    if (axis == Axis::self) continue;
    if (mesh.crosses_nodes(axis, machine.ranks_per_node)) price.set_link(axis, inter, 1);
    // Within a node, a thread of the sender and one of the receiver copy.
    else if (axis == Axis::hosts && has_gpus)
      price.set_link(axis, {kThread / 2, intra.latency_ns}, 1);
    if (axis != Axis::hosts && rates.kernels && computes_on_gpus(config, machine))
      price.set_group(axis, span_of(mesh, axis, machine.ranks_per_node), fabric);
  }
  return price;
}

Placement placement_of(const RunConfig& run, const Mesh& mesh) {
  return place(run.zero.sharding(), mesh, false,
               {run.train.dtype, reduce_wire_of(run.comm), gather_wire_of(run.zero.gather_dtype)});
}

std::vector<std::string> sets_of_plain_axes() {
  std::vector<std::string> sets;
  for (const MeshAxis& row : kMeshAxes)
    sets.push_back(fmt::format("parallel.{}={}", name_of(row.axis), row.axis == kFreeAxis.axis ? -1 : 1));
  return sets;
}

Machine machine_of(const RunConfig& config, const std::string& path, int threads, int ranks_on_host) {
  const std::string& file = path.empty() ? config.device.machine : path;
  Machine machine = file.empty() ? this_host(threads, ranks_on_host) : load_machine(file);
  machine.threads = threads;
  return machine;
}

namespace {

/// Returns the cores on which this process may run.
int cores_here() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  return sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
}

}  // namespace

void require_nodes(const Machine& machine, int64_t world) {
  const int64_t most = machine.nodes * machine.ranks_per_node;
  if (most == 0 || world <= most) return;
  throw ConfigError(
      "[plan] {} ranks exceed machine {}: it has {} of {}, {} ranks. Use --ranks {} or less, or raise nodes or "
      "ranks_per_node in the machine file.",
      world, machine.name, counted(machine.nodes, "node"), counted(machine.ranks_per_node, "rank"), most, most);
}

bool computes_on_gpus(const RunConfig& config, const Machine& machine) {
  if (config.device.kind != DeviceChoice::automatic) return config.device.kind == DeviceChoice::cuda;
  if (config.comm.backend != Backend::automatic) return config.comm.backend == Backend::nccl;
  return machine.device == MachineDevice::cuda;
}

int threads_of(const RunConfig& config, int ranks_on_host) {
  if (config.device.threads > 0) return static_cast<int>(config.device.threads);
  return std::max(1, cores_here() / std::max(1, ranks_on_host));
}

std::string remark_on_threads(const RunConfig& config) {
  const int cores = cores_here();
  if (config.device.threads <= cores) return "";
  return fmt::format(
      "device.threads = {} on {} core{}: the threads of a kernel wait for each other, so a step takes many times "
      "longer. Use at most {}",
      config.device.threads, cores, cores == 1 ? "" : "s", cores);
}

}  // namespace slipstream::planner

// SPDX-License-Identifier: Apache-2.0
// Checks a configuration as a whole.

#include "engine/config/validate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "engine/base/plural.h"
#include "engine/base/units.h"
#include "engine/config/defaults.h"
#include "engine/config/fields.h"
#include "engine/config/multipliers.h"

namespace slipstream {
namespace {

/// Returns "16 or 24": the positive multiples of `unit` around `value`.
std::string nearest_multiples(int64_t value, int64_t unit) {
  const int64_t below = value / unit * unit;
  return below > 0 ? fmt::format("{} or {}", below, below + unit) : fmt::format("{}", unit);
}

void validate_train(const RunConfig& config) {
  const Train& train = config.train;
  const Optimizer& optimizer = config.optimizer;
  if (train.sequence_length > config.model.context)
    throw ConfigError(
        "train.sequence_length = {} is longer than model.context = {}. Reduce it, or raise model.context.",
        train.sequence_length, config.model.context);
  if (const int64_t chunks = 2 * config.parallel.context;
      config.parallel.context > 1 && train.sequence_length % chunks != 0)
    throw ConfigError(
        "train.sequence_length = {} is not a multiple of 2 x parallel.context = {} because every rank holds two chunks "
        "of a sequence. Use {}{}.",
        train.sequence_length, chunks, nearest_multiples(train.sequence_length, chunks),
        train.sequence_length / chunks * chunks + chunks > config.model.context
            ? fmt::format("; at most model.context = {}", config.model.context)
            : "");
  if (train.global_batch_size % train.micro_batch_size != 0)
    throw ConfigError("train.global_batch_size = {} is not a multiple of train.micro_batch_size = {}. Use {}.",
                      train.global_batch_size, train.micro_batch_size,
                      nearest_multiples(train.global_batch_size, train.micro_batch_size));
  if (static_cast<double>(train.micro_batch_size) * static_cast<double>(train.sequence_length) > 1e12)
    throw ConfigError(
        "train.micro_batch_size x train.sequence_length = {} x {} exceeds the limit of 1e12 tokens. Reduce one of "
        "them.",
        train.micro_batch_size, train.sequence_length);
  if (optimizer.min_learning_rate > optimizer.learning_rate)
    throw ConfigError("optimizer.min_learning_rate = {} is above optimizer.learning_rate = {}. Use a smaller one.",
                      optimizer.min_learning_rate, optimizer.learning_rate);
  if (train.on_nan == OnNan::rollback && config.checkpoint.interval + config.checkpoint.interval_minutes == 0)
    throw ConfigError(
        "train.on_nan = \"rollback\" needs checkpoints to go back to, but checkpoint.interval = 0 and "
        "checkpoint.interval_minutes = 0. Set one of them, or use \"skip\".");
  // `--set train.steps` may end a run inside its warm-up, but an explicit decay_steps may not.
  if (optimizer.decay_steps < optimizer.warmup_steps && optimizer.decay_steps != train.steps)
    throw ConfigError("optimizer.decay_steps = {} is smaller than optimizer.warmup_steps = {}. Use at least {}.",
                      optimizer.decay_steps, optimizer.warmup_steps, optimizer.warmup_steps);
  const bool cools = optimizer.schedule == RateSchedule::warmup_stable_decay;
  if (optimizer.cooldown_steps > 0 && !cools)
    throw ConfigError(
        "optimizer.cooldown_steps = {} has no effect with optimizer.schedule = \"{}\". Remove it, or use "
        "\"warmup_stable_decay\".",
        optimizer.cooldown_steps, name_of(optimizer.schedule));
  if (const int64_t left = optimizer.decay_steps - optimizer.warmup_steps;
      cools && optimizer.cooldown_steps > std::max<int64_t>(0, left)) {
    const std::string shorter = left > 0 ? fmt::format("at most {} for the cool-down, or ", left) : "";
    throw ConfigError(
        "optimizer.cooldown_steps = {} and warmup_steps = {} exceed decay_steps = {}{}. Use {}at least {} for "
        "decay_steps.",
        optimizer.cooldown_steps, optimizer.warmup_steps, optimizer.decay_steps,
        optimizer.decay_steps == train.steps ? " = train.steps" : "", shorter,
        optimizer.cooldown_steps + optimizer.warmup_steps);
  }
}

/// Checks the rules of optimizers that update whole matrices.
void validate_optimizer(const RunConfig& config) {
  if (!updates_matrices(config.optimizer.name)) return;
  const std::string name = field_text(config, "optimizer.name"), other = name_of(Optimizer{}.name);
  if (config.parallel.tensor > 1)
    throw ConfigError(
        "parallel.tensor = {} with optimizer.name = {} is not supported: the update needs whole matrices, and every "
        "tensor rank holds a part of each. Use parallel.tensor = 1, or optimizer.name = \"{}\".",
        config.parallel.tensor, name, other);
  if (config.zero.sharding().gradients)
    throw ConfigError(
        "zero.stage = {} with optimizer.name = {} is not supported: the update needs whole matrices, and the gradients "
        "of a layer are divided into equal ranges. Use zero.stage = 0 or 1, or optimizer.name = \"{}\".",
        config.zero.stage, name, other);
}

/// Checks the rules between ZeRO and the formats on the wire.
void validate_zero(const RunConfig& config) {
  const Zero& zero = config.zero;
  const ReduceMode reduce_mode = config.overlap.grad_reduce;
  if (zero.sharding().gradients && reduce_mode != ReduceMode::bucketed)
    throw ConfigError(
        "zero.stage = {} does not support overlap.grad_reduce = \"{}\": it reduces a whole layer at once, because the "
        "next layer needs the slot of its gradients. Use \"bucketed\", or stage 0 or 1.",
        zero.stage, name_of(reduce_mode));
  if (zero.persistence_threshold_bytes > 0 && config.pipeline.virtual_stages > 1)
    throw ConfigError(
        "zero.persistence_threshold = {} with pipeline.virtual_stages = {} is not supported: the parts of a stage "
        "would "
        "write the gradients of small parameters in turn. Use virtual_stages = 1, or leave persistence_threshold out.",
        format_bytes(zero.persistence_threshold_bytes), config.pipeline.virtual_stages);
  if (config.train.dtype == DType::bf16 && zero.gather_dtype == DTypeChoice::float32 && zero.sharding().states)
    throw ConfigError(
        "zero.gather_dtype = \"float32\" with train.dtype = \"bfloat16\" sends twice the bytes for the same rounded "
        "weights. Use \"auto\".");
  if (!zero.sharding().states && (zero.gather_dtype == DTypeChoice::int8 ||
                                  (zero.gather_dtype == DTypeChoice::bfloat16) != (config.train.dtype == DType::bf16)))
    throw ConfigError(
        "zero.gather_dtype = \"{}\" has no effect with zero.stage = 0 because no parameters travel. Use stage 1, 2 or "
        "3, or \"auto\".",
        zero.gather_dtype == DTypeChoice::int8       ? "int8"
        : zero.gather_dtype == DTypeChoice::bfloat16 ? "bfloat16"
                                                     : "float32");
  if (zero.sharding().parameters && config.optimizer.double_buffer == Choice::yes)
    throw ConfigError(
        "optimizer.double_buffer = true with zero.stage = 3 has no benefit: layers pass through slots, so updates "
        "never "
        "wait for readers. Use false, or stage 0, 1 or 2.");
  const Comm& comm = config.comm;
  if (comm.quantize == Quantize::none && comm.error_feedback)
    throw ConfigError(
        "comm.error_feedback = true has no effect with comm.quantize = \"none\" because uncompressed gradients have no "
        "rounding error. Use \"int8\", or false.");
  if (comm.quantize == Quantize::int8 && comm.grad_dtype == DTypeChoice::bfloat16)
    throw ConfigError(
        "comm.quantize = \"int8\" needs float32 gradients, got comm.grad_dtype = \"bfloat16\". Leave grad_dtype out, "
        "or "
        "use quantize = \"none\".");
}

/// Checks the layouts of experts. Those of the second half are not supported yet.
void validate_expert_axis(const RunConfig& config) {
  const ExpertOptions& experts = config.model.experts;
  const int64_t ranks = config.parallel.expert;
  if (ranks > 1 && experts.count == 0)
    throw ConfigError("parallel.expert = {} needs a model with experts. Use 1, or set model.experts.count.", ranks);
  if (experts.count % ranks != 0)
    throw ConfigError("parallel.expert = {} does not divide model.experts.count = {}. Use a divisor of {}.", ranks,
                      experts.count, experts.count);
  if (experts.count == 0) return;
  const auto unsupported = [](const std::string& key, const std::string& use) {
    throw ConfigError("{} with experts is not supported yet. Use {}.", key, use);
  };
  if (config.parallel.tensor > 1) unsupported(fmt::format("parallel.tensor = {}", config.parallel.tensor), "1");
  if (ranks == 1) return;
  if (const int64_t shard = config.zero.shard_size; shard > 0 && shard % ranks != 0 && ranks % shard != 0)
    throw ConfigError(
        "zero.shard_size = {} is neither a multiple nor a divisor of parallel.expert = {}: the ranks that shard "
        "together would hold some experts more often than others. Use a multiple or a divisor of {}, or 0.",
        shard, ranks, ranks);
  if (config.overlap.paired_passes && config.parallel.pipeline > 1)
    unsupported(fmt::format("overlap.paired_passes = true and parallel.pipeline = {}", config.parallel.pipeline),
                "false, or parallel.pipeline = 1");
  // The forward pass that is repeated would overwrite what travels for the other micro-batch.
  if (config.overlap.paired_passes && config.train.recompute == Recomputation::full)
    unsupported("overlap.paired_passes = true and train.recompute = \"full\"", "recompute = \"selective\" or \"none\"");
}

void validate_layout(const RunConfig& config) {
  if (config.parallel.data == 0)
    throw ConfigError("parallel.data = 0 leaves no rank to train. Use -1 (all remaining ranks) or at least 1.");
  if (config.zero.shard_size > 0 && !config.zero.sharding().states)
    throw ConfigError("zero.shard_size = {} has no effect with zero.stage = 0. Use stage 1, 2 or 3, or shard_size = 0.",
                      config.zero.shard_size);
  if (config.zero.shard_size == 1)
    throw ConfigError("zero.shard_size = 1 divides no state. Use at least 2, 0 for all data ranks, or zero.stage = 0.");
  if (const int64_t ranks = config.parallel.data * config.parallel.context;
      config.zero.shard_size > 0 && ranks > 0 && ranks % config.zero.shard_size != 0)
    throw ConfigError(
        "zero.shard_size = {} does not divide parallel.data{}. Use a divisor, or 0.", config.zero.shard_size,
        config.parallel.context == 1
            ? fmt::format(" = {}", ranks)
            : fmt::format(" x parallel.context = {} x {} = {}", config.parallel.data, config.parallel.context, ranks));
  if (config.overlap.align_grad_reduce && config.zero.sharding().gradients)
    throw ConfigError(
        "overlap.align_grad_reduce = true with zero.stage = {} is not supported: the next layer needs the slot of a "
        "layer's gradients, so they cannot wait. Use false.",
        config.zero.stage);
  const int64_t ahead = std::max<int64_t>(1, config.model.layers - 1);
  if (config.zero.sharding().parameters && config.zero.prefetch_depth > ahead)
    throw ConfigError(
        "zero.prefetch_depth = {} exceeds the {} layers after the first of model.layers = {}. Use at most {}, or "
        "zero.reshard_after_forward = false to keep every layer.",
        config.zero.prefetch_depth, ahead, config.model.layers, ahead);
  const std::vector<int64_t>& layers = config.pipeline.layers;
  const int chunks = chunks_of(config.pipeline.schedule);
  if (chunks > 1 && config.pipeline.virtual_stages != chunks)
    throw ConfigError(
        "pipeline.virtual_stages = {} with pipeline.schedule = {}, which has {} parts on each stage. Use {}, or leave "
        "virtual_stages out.",
        config.pipeline.virtual_stages, field_text(config, "pipeline.schedule"), chunks, chunks);
  if (chunks == 1 && config.pipeline.virtual_stages > 1 && config.pipeline.schedule_file.empty())
    throw ConfigError(
        "pipeline.virtual_stages = {} needs pipeline.schedule = \"interleaved_1f1b\" or a pipeline.schedule_file. Set "
        "one of them, or use 1.",
        config.pipeline.virtual_stages);
  if (!config.pipeline.schedule_file.empty() && config.pipeline.schedule != Pipeline{}.schedule)
    throw ConfigError(
        "pipeline.schedule = {} has no effect with pipeline.schedule_file = \"{}\", which defines the schedule. Leave "
        "one of them out.",
        field_text(config, "pipeline.schedule"), config.pipeline.schedule_file);
  const int64_t stages = config.parallel.pipeline * config.pipeline.virtual_stages;
  if (stages > config.model.layers)
    throw ConfigError(
        "parallel.pipeline x pipeline.virtual_stages = {} x {} = {} stages exceeds model.layers = {}. Use at most one "
        "stage per layer.",
        config.parallel.pipeline, config.pipeline.virtual_stages, stages, config.model.layers);
  if (config.pipeline.virtual_stages > 1 && layers.empty() && config.model.layers % stages != 0)
    throw ConfigError(
        "model.layers = {} is not a multiple of parallel.pipeline x pipeline.virtual_stages = {} x {} = {} parts. Use "
        "{} layers, {}, or list the layers of each part in pipeline.layers.",
        config.model.layers, config.parallel.pipeline, config.pipeline.virtual_stages, stages,
        nearest_multiples(config.model.layers, stages), chunks > 1 ? "other stages" : "other virtual_stages");
  if (layers.empty()) return;
  if (static_cast<int64_t>(layers.size()) != stages)
    throw ConfigError(
        "pipeline.layers has {} entries for {} stages (parallel.pipeline x pipeline.virtual_stages). "
        "Write one for each, or none.",
        layers.size(), stages);
  for (size_t part = 1; part + 1 < layers.size(); ++part)
    if (layers[part] == 0)
      throw ConfigError(
          "pipeline.layers gives part {} of {} no layer. Only the first part (with the embedding) and the last (with "
          "the head) may be empty.",
          part, layers.size());
  if (const int64_t sum = std::accumulate(layers.begin(), layers.end(), int64_t{0}); sum != config.model.layers)
    throw ConfigError("pipeline.layers sums to {}, but model.layers = {}. Make them equal.", sum, config.model.layers);
}

void validate_trace(const RunConfig& config) {
  const std::vector<int64_t>& steps = config.trace.steps;
  if (steps.empty()) return;
  if (steps.size() != 2)
    throw ConfigError("trace.steps has {} entries. Give the first and the last step, such as [10, 12], or none.",
                      steps.size());
  if (steps[0] > steps[1])
    throw ConfigError("trace.steps = [{}, {}] ends before it begins. Write [{}, {}].", steps[0], steps[1], steps[1],
                      steps[0]);
}

void validate_device(const RunConfig& config) {
  const bool nccl = config.comm.backend == Backend::nccl, mpi = config.comm.backend == Backend::mpi;
  if (config.device.kind == DeviceChoice::cuda && mpi)
    throw ConfigError(
        "comm.backend = \"mpi\" moves host memory, but device.kind = \"cuda\". Use \"auto\" or \"nccl\".");
  if (config.device.kind == DeviceChoice::cpu && nccl)
    throw ConfigError("comm.backend = \"nccl\" moves GPU memory, but device.kind = \"cpu\". Use \"auto\" or \"mpi\".");
  if (config.device.kind == DeviceChoice::cpu || mpi) require_settings_of_cpu(config);
}

}  // namespace

std::vector<std::string> without_effect(const RunConfig& config) {
  std::vector<std::string> sentences;
  const RunConfig taken = in_effect(config);
  const auto cause_of = [&](std::string_view key) {
    if (config.model.experts.count > 0 && key == "model.experts.group_top_k") return "model.experts.groups";
    if (config.model.experts.count > 0 && key == "model.experts.balance_rate") return "model.experts.balance";
    if (key.starts_with("model.experts.")) return "model.experts.count";
    if (key.starts_with("zero.")) return "zero.stage";
    if (key.starts_with("optimizer.")) return "optimizer.name";
    if (key.starts_with("train.")) return "train.recompute";
    if (key.starts_with("checkpoint.")) return "checkpoint.async";
    if (key == "overlap.paired_passes" || key == "parallel.expert_exchange") return "parallel.expert";
    if (key == "parallel.sequence_parallel" || key == "overlap.tensor_chunks") return "parallel.tensor";
    return "parallel.pipeline";
  };
  for (const Field<RunConfig>& field : run_fields())
    if (const std::string text = field_text(config, field.key); text != field_text(taken, field.key)) {
      const char* cause = cause_of(field.key);
      sentences.push_back(
          fmt::format("{} = {} has no effect with {} = {}", field.key, text, cause, field_text(config, cause)));
    }
  return sentences;
}

void validate(const RunConfig& written) {
  const RunConfig config = in_effect(written);
  validate_model(config.model);
  validate_experts(config.model);
  validate_data(config);
  parse_multipliers(config.optimizer.multipliers);
  validate_train(config);
  validate_tensor(config);
  validate_expert_axis(config);
  validate_layout(config);
  validate_optimizer(config);
  validate_zero(config);
  validate_trace(config);
  validate_device(config);
  for (const char* key : {"output.dir", "checkpoint.dir"})
    if (const std::string dir = field_text(config, key); dir.starts_with("\"~"))
      throw ConfigError("{} = {} begins with ~, which only a shell replaces. Write the whole path.", key, dir);
  if (config.output.dir.empty())
    throw ConfigError("output.dir is empty. Name the run's folder, such as \"runs/first\".");
  const std::string last = config.output.dir.substr(config.output.dir.find_last_of('/') + 1);
  if (last == "." || last == ".." || last.empty())
    throw ConfigError(
        "output.dir = {} has no folder name, which renaming an older run needs. Name a folder, such as \"runs/first\".",
        field_text(config, "output.dir"));
}

namespace {

/// Returns the sizes in the run file with this size of the data axis.
MeshSizes sizes_with(const Parallel& parallel, int64_t data) {
  MeshSizes sizes;
  for (size_t row = 1; row < kMeshAxes.size(); ++row)
    sizes.*kMeshAxes[row].size = static_cast<int>(parallel.*kAxisKeys[row]);
  sizes.*kFreeAxis.size = static_cast<int>(data);
  return sizes;
}

/// Returns the product of the other axes. Each is at most 65536, so that the product fits.
int64_t other_ranks(const Parallel& parallel) {
  int64_t ranks = 1;
  for (size_t row = 1; row < kMeshAxes.size(); ++row) ranks *= parallel.*kAxisKeys[row];
  return ranks;
}

/// Returns the error of this layout with a valid run file, or an empty text if the layout is legal.
std::string refusal_of(RunConfig config, const MeshSizes& layout, const LayoutLaw& law) {
  for (size_t row = 0; row < kMeshAxes.size(); ++row) config.parallel.*kAxisKeys[row] = layout.*kMeshAxes[row].size;
  try {
    validate(config);
    const Batch batch = resolve_batch(config, layout.data);
    if (law) law(in_effect(config), batch);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

/// Calls f with every way to write `world` as a product of the axes from `row` on and of `sizes` before them.
template <typename F>
void for_layouts(int world, size_t row, MeshSizes& sizes, F&& f) {
  if (row == kMeshAxes.size()) {
    sizes.*kFreeAxis.size = world;
    return f(sizes);
  }
  for (int size = 1; size <= world; ++size) {
    if (world % size != 0) continue;
    sizes.*kMeshAxes[row].size = size;
    for_layouts(world / size, row + 1, sizes, f);
  }
}

/// Returns the layouts that the run file allows, such as "Legal layouts of 6 ranks, as data x tensor x pipeline x
/// context: 2x1x3x1, 6x1x1x1 and 4 more". Layouts over the requested axes come first, sorted by their distance from the
/// request. Without a legal layout, returns the reason against the nearest one.
std::string legal_layouts(const RunConfig& config, int world, const LayoutLaw& law) {
  constexpr size_t kPrinted = 30;
  struct Candidate {
    int more_axes = 0;  // the axes beyond the requested ones
    double distance = 0;
    std::string text, refusal;
    bool operator<(const Candidate& other) const {
      return std::tie(more_axes, distance) < std::tie(other.more_axes, other.distance);
    }
  };
  std::vector<Candidate> candidates;
  MeshSizes all;
  for_layouts(world, 1, all, [&](const MeshSizes& layout) {
    Candidate candidate{.text = "", .refusal = refusal_of(config, layout, law)};
    for (size_t row = 0; row < kMeshAxes.size(); ++row) {
      const int is = layout.*kMeshAxes[row].size;
      const int64_t asked = config.parallel.*kAxisKeys[row];
      candidate.text += fmt::format("{}{}", row == 0 ? "" : "x", is);
      candidate.more_axes += asked == 1 && is > 1 && row > 0;
      if (asked > 0) candidate.distance += std::abs(std::log2(static_cast<double>(asked) / is));
    }
    candidates.push_back(std::move(candidate));
  });
  std::stable_sort(candidates.begin(), candidates.end());
  const Candidate nearest = candidates.front();
  std::erase_if(candidates, [](const Candidate& candidate) { return !candidate.refusal.empty(); });
  if (candidates.empty())
    return fmt::format("No layout of {} ranks fits the rest of the run file ({}, for instance: \"{}\"). Change it",
                       world, nearest.text, nearest.refusal);
  std::string list = fmt::format("Legal layouts of {} ranks, as data x tensor x pipeline x context: ", world);
  for (size_t i = 0; i < std::min(kPrinted, candidates.size()); ++i) list += (i == 0 ? "" : ", ") + candidates[i].text;
  return candidates.size() <= kPrinted ? list : list + fmt::format(" and {} more", candidates.size() - kPrinted);
}

/// Returns ", or start 4 or 8 ranks": the numbers nearest to `world` that keep the other axes legal.
std::string legal_worlds(const RunConfig& config, int world, const LayoutLaw& law) {
  const Parallel& p = config.parallel;
  const int64_t others = other_ranks(p), most = std::numeric_limits<int>::max() / others;
  const auto legal = [&](int64_t data) { return refusal_of(config, sizes_with(p, data), law).empty(); };
  std::vector<int64_t> worlds;
  if (p.data != -1) {
    if (p.data <= most && legal(p.data)) worlds = {others * p.data};
  } else {
    constexpr int64_t kTried = 64;  // numbers on either side
    const int64_t below = world / others;
    for (int64_t data = below; data > std::max<int64_t>(0, below - kTried) && worlds.empty(); --data)
      if (legal(data)) worlds.push_back(others * data);
    const size_t found = worlds.size();
    for (int64_t data = below + 1; data <= std::min(most, below + kTried) && worlds.size() == found; ++data)
      if (legal(data)) worlds.push_back(others * data);
  }
  if (worlds.empty()) return "";
  return fmt::format(", or start {} ranks{}", fmt::join(worlds, " or "), world == 1 ? " with mpirun" : "");
}

}  // namespace

void require_settings_of_cpu(const RunConfig& config) {
  if (config.comm.deterministic == Choice::no)
    throw ConfigError(
        "comm.deterministic = false has no effect on the CPU because the CPU always sums in rank order. Use \"auto\" "
        "or "
        "true, or GPUs.");
}

MeshSizes resolve_layout(const RunConfig& config, int world, const LayoutLaw& law) {
  const Parallel& p = config.parallel;
  const std::string all = text_of(sizes_with(p, 1)), axes = all.substr(all.find(" x ") + 3);  // without the data axis
  const int64_t others = other_ranks(p);
  const bool divides = world % others == 0;
  const auto remedy = [&] { return legal_layouts(config, world, law) + legal_worlds(config, world, law); };
  if (p.data == -1 && !divides)
    throw ConfigError("[parallel] {} = {} ranks do not divide the {} started ranks. {}.", axes, others, world,
                      remedy());
  if (p.data != -1 && (!divides || world / others != p.data))
    throw ConfigError("[parallel] data {} x {} = {:.0f} ranks, but {} were started. {}.", p.data, axes,
                      static_cast<double>(others) * static_cast<double>(p.data), world, remedy());
  MeshSizes sizes = sizes_with(p, world / others);
  sizes.expert = static_cast<int>(p.expert);
  return sizes;
}

// The limit of layers x micro-batches of a step. Each took 12 KiB and 0.6 ms on one rank of a busy 2.8 GHz Xeon, so
// that the largest plan takes 1.6 GiB and a minute and a half.
constexpr int64_t kPlannedBlocksMax = 1 << 17;
constexpr int64_t kPlannedBlockBytes = 12 * kKiB;
constexpr int64_t kPlannedBlocksPerSecond = 1600;

Batch resolve_batch(const RunConfig& config, int data_ranks) {
  const int64_t micro = config.train.micro_batch_size;
  const int64_t unit = micro * data_ranks;
  const int64_t global = config.train.global_batch_size == 0 ? unit : config.train.global_batch_size;
  if (global % unit != 0) {
    throw ConfigError(
        "train.global_batch_size = {} is not a multiple of train.micro_batch_size x data ranks = {} x {} = {}. Use {} "
        "(0 means {}), or change micro_batch_size or the ranks.",
        global, micro, data_ranks, unit, nearest_multiples(global, unit), unit);
  }
  const int64_t micro_batches = global / unit, layers = config.model.layers, blocks = micro_batches * layers;
  if (blocks > kPlannedBlocksMax)
    throw ConfigError(
        "train.global_batch_size = {} in micro-batches of {} on {} is {} per rank and step, each of model.layers = {}. "
        "A plan lists every layer of every micro-batch, at most {}; these {} would take about {} of memory and {} s on "
        "every rank. Use train.micro_batch_size = {} or larger, or more data ranks.",
        global, micro, counted(data_ranks, "data rank"), counted(micro_batches, "micro-batch"), layers,
        kPlannedBlocksMax, blocks, format_bytes(blocks * kPlannedBlockBytes), blocks / kPlannedBlocksPerSecond,
        micro * ((blocks + kPlannedBlocksMax - 1) / kPlannedBlocksMax));
  return {.global_batch_size = global, .micro_batches = micro_batches};
}

}  // namespace slipstream

// SPDX-License-Identifier: Apache-2.0
// TOML files of torchtitan, whose model sizes have names.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/config/toml.h"
#include "planner/imports/options.h"

namespace slipstream::planner {
namespace {

/// Tables and keys that name, record or check, and so do not change the time of a step.
const std::vector<std::string_view> kNeutral = {"job",
                                                "profiling",
                                                "metrics",
                                                "checkpoint",
                                                "validation",
                                                "comm",
                                                "debug",
                                                "compile",
                                                "memory_estimation",
                                                "logging",
                                                "experimental.custom",
                                                "model.tokenizer",
                                                "model.hf_assets",
                                                "model.print",
                                                "model.norm_type",
                                                "training.dataset",
                                                "training.seed",
                                                "training.deterministic",
                                                "training.gc_",
                                                "training.mixed_precision",
                                                "training.enable_cpu",
                                                "training.compile",
                                                "training.max_norm",
                                                "training.warmup",
                                                "training.data_parallel_type",
                                                "training.enable_fp8",
                                                "activation_checkpoint",
                                                "optimizer",
                                                "lr_scheduler",
                                                "fault_tolerance",
                                                "float8",
                                                "mx",
                                                "quantize",
                                                "parallelism.disable_loss",
                                                "parallelism.enable_loss",
                                                "parallelism.context_parallel_rotate",
                                                "parallelism.pipeline_parallel_microbatch",
                                                "parallelism.enable_compiled",
                                                "parallelism.expert_tensor",
                                                "experimental.enable_compiled",
                                                "experimental.pipeline_parallel_microbatch",
                                                "experimental.context_parallel_rotate"};

struct Flavor {
  std::string_view model, name;
  int64_t layers, width, heads, kv_heads, ffn_width, vocab;
  double rope_theta;
};
/// Published sizes of Llama 3.
constexpr Flavor kFlavors[] = {{"llama3", "debugmodel", 6, 256, 16, 16, 768, 2048, 500000},
                               {"llama3", "8B", 32, 4096, 32, 8, 14336, 128256, 500000},
                               {"llama3", "70B", 80, 8192, 64, 8, 28672, 128256, 500000},
                               {"llama3", "405B", 126, 16384, 128, 8, 53248, 128256, 500000},
                               {"llama2", "7B", 32, 4096, 32, 32, 11008, 32000, 10000},
                               {"llama2", "13B", 40, 5120, 40, 40, 13824, 32000, 10000},
                               {"llama2", "70B", 80, 8192, 64, 8, 28672, 32000, 10000}};

std::string text_of(const ConfigValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* other = std::get_if<OtherValue>(&value)) return other->description;
  return to_toml(value);
}

/// The list model.converters, which the reader of TOML describes without its texts.
bool converts_to_float8(const std::string& path) {
  constexpr int64_t kLargestFile = int64_t{1} << 20;
  const std::string text = files::read_file(path, files::Owner::data, kLargestFile);
  const size_t at = text.find("\nconverters");
  return at != std::string::npos && text.substr(at, text.find('\n', at + 1) - at).find("float8") != std::string::npos;
}

}  // namespace

Imported import_torchtitan(const std::string& path) {
  std::vector<ForeignOption> options;
  for (const TomlEntry& entry : read_toml(path, "a torchtitan file, for example train_configs/llama3_8b.toml"))
    if (!entry.is_table) options.push_back({entry.key, text_of(entry.value), entry.where});
  ForeignOptions from(std::move(options), "");
  const std::string model = from.word("model.name", ""), flavor = from.word("model.flavor", "");
  const auto found = std::find_if(std::begin(kFlavors), std::end(kFlavors),
                                  [&](const Flavor& f) { return f.model == model && f.name == flavor; });
  if (found == std::end(kFlavors)) {
    const bool known =
        std::any_of(std::begin(kFlavors), std::end(kFlavors), [&](const Flavor& f) { return f.model == model; });
    from.refuse(known ? "model.flavor" : "model.name",
                known ? "is no size that this version knows: 8B, 70B or 405B of llama3"
                      : "is not supported: llama3 and llama2 are");
  }
  ForeignRun run{.llama = true,
                 .layers = found->layers,
                 .width = found->width,
                 .heads = found->heads,
                 .kv_heads = found->kv_heads,
                 .ffn_width = found->ffn_width,
                 .vocab = found->vocab,
                 .tied = false,
                 .rope_theta = found->rope_theta};
  // Older files have degrees elsewhere.
  const auto degree = [&](const std::string& name, int64_t otherwise) {
    for (const char* table : {"parallelism.", "training.", "experimental."})
      if (const ForeignOption* option = from.find(table + name); option) return from.integer(table + name, otherwise);
    return otherwise;
  };
  run.sequence = from.integer("training.seq_len", 2048);
  run.micro_batch = from.integer("training.local_batch_size", from.integer("training.batch_size", 1));
  run.global_batch = std::max<int64_t>(0, from.integer("training.global_batch_size", 0));
  run.steps = from.integer("training.steps", 1);
  run.grad_clip = from.real("training.max_norm", 1);
  run.learning_rate = from.real("optimizer.lr", 8e-4);
  run.tensor = degree("tensor_parallel_degree", 1);
  run.pipeline = degree("pipeline_parallel_degree", 1);
  run.context_ranks = degree("context_parallel_degree", 1);
  run.sequence_parallel = run.tensor > 1;
  const int64_t replicas = std::max<int64_t>(1, degree("data_parallel_replicate_degree", 1)),
                shards = degree("data_parallel_shard_degree", -1);
  if (degree("expert_parallel_degree", 1) > 1) from.refuse("parallelism.expert_parallel_degree", "is not supported");
  run.zero_stage = shards == 1 ? 0 : 3;
  if (replicas > 1 && shards > 1) run.shard_size = shards;
  if (shards > 0) run.ranks = shards * replicas * run.tensor * run.pipeline * run.context_ranks;
  // Stages keep gathered layers between the micro-batches.
  const std::string reshard = from.word("parallelism.fsdp_reshard_after_forward", "default");
  if (run.zero_stage == 3 && (reshard == "never" || (run.pipeline > 1 && reshard == "default"))) run.zero_stage = 2;
  for (const char* name : {"parallelism.enable_async_tensor_parallel", "experimental.enable_async_tensor_parallel"})
    run.overlaps_tensor = run.overlaps_tensor || from.flag(name);
  std::string schedule = from.word("parallelism.pipeline_parallel_schedule", "1F1B");
  if (const ForeignOption* older = from.find("experimental.pipeline_parallel_schedule")) schedule = older->value;
  std::transform(schedule.begin(), schedule.end(), schedule.begin(), [](unsigned char c) { return std::tolower(c); });
  if (run.pipeline > 1) {
    if (schedule == "interleaved1f1b" || schedule == "interleaved_1f1b")
      run.virtual_stages = 2;
    else if (schedule == "gpipe")
      run.schedule = "gpipe";
    else if (schedule != "1f1b")
      from.refuse("parallelism.pipeline_parallel_schedule", "is not supported: 1F1B, Interleaved1F1B and GPipe are");
  }
  const std::string mode = from.word("activation_checkpoint.mode", "none");
  run.recompute = mode == "full" ? "full" : mode == "selective" ? "selective" : "none";
  from.find("model.converters");
  const bool fp8 = converts_to_float8(path) || from.flag("float8.enable_float8_linear");
  from.require_known(kNeutral);
  Imported imported = run_file_of(run, path);
  imported.as = fp8 ? "fsdp+fp8" : "fsdp";
  return imported;
}

}  // namespace slipstream::planner

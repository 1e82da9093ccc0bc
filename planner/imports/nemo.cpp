// SPDX-License-Identifier: Apache-2.0
// Training configurations of NeMo: nested YAML mappings as dotted names, with references to other keys replaced.

#include <algorithm>
#include <cctype>
#include <map>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "planner/imports/options.h"

namespace slipstream::planner {
namespace {

constexpr int64_t kLargestFile = int64_t{1} << 20;

/// Parts that name, record, place, check or initialise, and so do not change the time of a step.
const std::vector<std::string_view> kNeutral = {"defaults",
                                                "hydra",
                                                "run",
                                                "name",
                                                "restore_from",
                                                "exp_manager",
                                                "trainer",
                                                "model.tokenizer",
                                                "model.data",
                                                "model.optim",
                                                "model.nsys_profile",
                                                "model.init_method",
                                                "model.use_scaled_init",
                                                "model.embedding_dropout",
                                                "model.apply_query_key",
                                                "model.do_layer_norm",
                                                "model.make_vocab",
                                                "model.pre_process",
                                                "model.post_process",
                                                "model.persist_layer_norm",
                                                "model.headscale",
                                                "model.transformer_block_type",
                                                "model.openai_gelu",
                                                "model.normalize_attention",
                                                "model.apply_rope_fusion",
                                                "model.cross_entropy",
                                                "model.attention_type",
                                                "model.native_amp",
                                                "model.hysteresis",
                                                "model.fp32_residual",
                                                "model.fp16_lm",
                                                "model.megatron_amp",
                                                "model.grad_",
                                                "model.gradient_",
                                                "model.bias_",
                                                "model.masked_softmax",
                                                "model.seed",
                                                "model.resume",
                                                "model.use_cpu",
                                                "model.onnx",
                                                "model.apex",
                                                "model.sync_batch",
                                                "model.activations_checkpoint",
                                                "model.num_micro_batches_with",
                                                "model.deterministic",
                                                "model.transformer_engine",
                                                "model.fp8",
                                                "model.use_flash",
                                                "model.gc_interval",
                                                "model.mcore_gpt",
                                                "model.use_emha",
                                                "model.batch_p2p",
                                                "model.overlap_p2p",
                                                "model.ub_tp_comm",
                                                "model.rampup_batch_size",
                                                "model.name",
                                                "model.precision",
                                                "model.rotary",
                                                "model.enable_megatron",
                                                "model.micro_batch",
                                                "model.tp_only_amax",
                                                "model.reduce_amax",
                                                "model.enable_cuda_graph",
                                                "model.seq_len_interp",
                                                "model.load_",
                                                "model.defer_embedding",
                                                "model.account_for",
                                                "model.nccl_communicator",
                                                "model.sharp",
                                                "model.dist_ckpt",
                                                "model.async",
                                                "model.scale_",
                                                "model.fsdp_",
                                                "model.memory_profile",
                                                "model.validation",
                                                "model.delay_param",
                                                "model.use_te_rng",
                                                "model.use_mcore_rng",
                                                "model.inference",
                                                "model.target",
                                                "model.cpu_offloading_",
                                                "base_results_dir",
                                                "training",
                                                "cluster",
                                                "s3_checkpointing",
                                                "env_vars",
                                                "model.get_attention_mask",
                                                "model.wgrad_deferral",
                                                "model.megatron_timer"};

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r"), end = text.find_last_not_of(" \t\r");
  return begin == std::string::npos ? "" : text.substr(begin, end + 1 - begin);
}

/// A scalar without its comment and quotes.
std::string scalar(const std::string& text) {
  std::string value = trimmed(text);
  if (!value.empty() && (value[0] == '"' || value[0] == '\'')) {
    const size_t end = value.find(value[0], 1);
    return end == std::string::npos ? value : value.substr(1, end - 1);
  }
  if (value.starts_with('#')) return "";
  if (const size_t comment = value.find(" #"); comment != std::string::npos) value = trimmed(value.substr(0, comment));
  return value;
}

/// The keys of mappings; items of lists become "key.0", "key.1".
std::vector<ForeignOption> options_of(const std::string& path) {
  const std::string text = files::read_file(path, files::Owner::data, kLargestFile);
  struct Level {
    size_t indent;
    std::string name;
    int items = 0;
  };
  std::vector<Level> levels;
  std::vector<ForeignOption> options;
  int64_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    const std::string content = trimmed(line);
    if (content.empty() || content[0] == '#' || content == "---") continue;
    const std::string where = fmt::format("{}:{}", path, line_number);
    if (line.find('\t') < line.find_first_not_of(" \t"))
      throw ConfigError("[import] {}: tabs cannot indent YAML. Use spaces.", where);
    const size_t indent = line.find_first_not_of(' ');
    const bool item = content[0] == '-' && (content.size() == 1 || content[1] == ' ');
    // Items may stand at the indent of their key.
    while (!levels.empty() && (item ? levels.back().indent > indent : levels.back().indent >= indent))
      levels.pop_back();
    std::string prefix;
    for (const Level& level : levels) prefix += level.name + ".";
    if (item) {
      if (levels.empty()) throw ConfigError("[import] {}: a list is no training configuration.", where);
      options.push_back({prefix + std::to_string(levels.back().items++), scalar(content.substr(1)), where});
      continue;
    }
    const size_t colon = content.find(':');
    if (colon == std::string::npos || (colon + 1 < content.size() && content[colon + 1] != ' ')) {
      if (options.empty()) throw ConfigError("[import] {}: expected 'key: value'.", where);
      continue;  // a long scalar goes on
    }
    const std::string name = scalar(content.substr(0, colon)), value = scalar(content.substr(colon + 1));
    if (value.empty())
      levels.push_back({indent, name});
    else
      options.push_back({prefix + name, value, where});
  }
  return options;
}

/// Replaces ${.sibling}, ${a.b} and ${multiply:a,b}, ${divide_ceil:a,b}; other references stay.
class References {
 public:
  explicit References(const std::vector<ForeignOption>& options) {
    for (const ForeignOption& option : options) values_[option.name] = option.value;
  }

  std::string replaced(const std::string& text, const std::string& name, int depth = 0) const {
    constexpr int kDeepest = 8;
    const size_t begin = text.rfind("${");  // the innermost
    if (begin == std::string::npos || depth > kDeepest) return text;
    const size_t end = text.find('}', begin);
    if (end == std::string::npos) return text;
    const std::string inner = text.substr(begin + 2, end - begin - 2);
    std::string value;
    if (inner.starts_with("multiply:") || inner.starts_with("divide_ceil:")) {
      value = calculated(inner);
    } else {
      std::string key = inner;
      if (key.starts_with(".")) key = name.substr(0, name.rfind('.') + 1) + key.substr(1);
      if (key.starts_with("training.")) key = key.substr(std::string_view("training.").size());
      const auto found = values_.find(key);
      if (found != values_.end()) value = replaced(found->second, key, depth + 1);
    }
    if (value.empty()) return text;
    return replaced(text.substr(0, begin) + value + text.substr(end + 1), name, depth + 1);
  }

 private:
  static std::string calculated(const std::string& inner) {
    const size_t colon = inner.find(':'), comma = inner.find(',');
    if (comma == std::string::npos) return "";
    const std::string a = trimmed(inner.substr(colon + 1, comma - colon - 1)), b = trimmed(inner.substr(comma + 1));
    const auto whole = [](const std::string& s) {
      constexpr size_t kDigits = 9;
      return !s.empty() && s.size() <= kDigits &&
             std::all_of(s.begin(), s.end(), [](unsigned char c) { return std::isdigit(c); });
    };
    if (!whole(a) || !whole(b) || (inner.starts_with("divide") && std::stoll(b) == 0)) return "";
    const int64_t x = std::stoll(a), y = std::stoll(b);
    return std::to_string(inner.starts_with("multiply") ? x * y : (x + y - 1) / y);
  }

  std::map<std::string, std::string> values_;
};

}  // namespace

Imported import_nemo(const std::string& path) {
  std::vector<ForeignOption> options = options_of(path);
  const References references(options);
  for (ForeignOption& option : options) option.value = references.replaced(option.value, option.name);
  ForeignOptions from(std::move(options), "");
  for (const char* part : {"model.encoder", "model.decoder"})
    if (const auto first =
            std::find_if(from.all().begin(), from.all().end(),
                         [&](const ForeignOption& o) { return o.name.starts_with(std::string(part) + "."); });
        first != from.all().end())
      from.refuse(first->name, "belongs to a model with an encoder, which is not supported");
  for (const char* option :
       {"model.num_moe_experts", "model.moe_router_topk", "model.expert_model_parallel_size", "model.bert_binary_head",
        "model.retro", "model.mm_cfg", "model.window_size", "model.cpu_offloading", "model.fsdp",
        "model.query_key_layer_scaling", "model.num_decoder_layers", "model.transfer", "model.qkv_bias",
        "model.unet_config", "model.vision"})
    if (const ForeignOption* found = from.find(option); found && found->value != "1" && found->value != "1.0")
      from.refuse_if_on(option, "is not supported");
  if (from.find("model.bert_binary_head"))
    from.refuse("model.bert_binary_head", "belongs to BERT, which is not supported");
  ForeignRun run;
  run.layers = from.integer("model.num_layers", 0);
  run.width = from.integer("model.hidden_size", 0);
  run.heads = from.integer("model.num_attention_heads", 0);
  run.kv_heads = from.integer("model.num_query_groups", 0);
  run.ffn_width = from.integer("model.ffn_hidden_size", 0);
  run.sequence = from.integer("model.encoder_seq_length", 0);
  if (run.sequence == 0) run.sequence = from.integer("model.seq_length", 0);
  run.context = from.integer("model.max_position_embeddings", run.sequence);
  if (const int64_t channels = from.integer("model.kv_channels", 0); channels > 0 && channels * run.heads != run.width)
    from.refuse("model.kv_channels", fmt::format("must be hidden_size / num_attention_heads = {}",
                                                 run.width / std::max<int64_t>(1, run.heads)));
  const std::string activation = from.word("model.activation", "gelu"),
                    norm = from.word("model.normalization", "layernorm"),
                    positions = from.word("model.position_embedding_type", "learned_absolute");
  const bool swiglu = activation == "swiglu" || activation == "fast-swiglu", rms = norm == "rmsnorm",
             rope = positions == "rope";
  run.llama = swiglu || rms || rope;
  if (!swiglu && activation != "gelu") from.refuse("model.activation", "is not supported: only gelu and swiglu are");
  if (run.llama && !swiglu) from.refuse("model.activation", "must be swiglu with rmsnorm or rope");
  if (run.llama && !rms) from.refuse("model.normalization", "must be rmsnorm with swiglu or rope");
  if (run.llama && !rope) from.refuse("model.position_embedding_type", "must be rope with swiglu or rmsnorm");
  if (run.llama && from.flag("model.bias", true)) from.refuse("model.bias", "must be false with swiglu");
  if (!run.llama && run.kv_heads > 0 && run.kv_heads != run.heads)
    from.refuse("model.num_query_groups", "is supported with rmsnorm, rope and swiglu only");
  if (!run.llama) from.flag("model.bias", true);
  if (from.real("model.rotary_percentage", 1) != 1) from.refuse("model.rotary_percentage", "must be 1.0");
  if (!run.llama) run.kv_heads = 0;
  run.vocab = from.integer("model.override_vocab_size", 0);
  run.tied = from.flag("model.share_embeddings_and_output_weights", true);
  run.rope_theta = from.real("model.rotary_base", 10000);
  run.norm_eps = from.real("model.layernorm_epsilon", 1e-5);
  run.micro_batch = from.integer("model.micro_batch_size", 1);
  run.global_batch = from.integer("model.global_batch_size", 0);
  run.tensor = from.integer("model.tensor_model_parallel_size", 1);
  run.pipeline = from.integer("model.pipeline_model_parallel_size", 1);
  run.context_ranks = from.integer("model.context_parallel_size", 1);
  run.virtual_stages = std::max<int64_t>(1, from.integer("model.virtual_pipeline_model_parallel_size", 1));
  run.sequence_parallel = from.flag("model.sequence_parallel");
  run.overlaps_tensor = from.flag("model.ub_tp_comm_overlap");
  set_recomputation(run, from.word("model.activations_checkpoint_granularity", ""),
                    from.word("model.activations_checkpoint_method", ""),
                    from.integer("model.activations_checkpoint_num_layers", 1));
  // As its base configuration.
  run.hidden_dropout = from.real("model.hidden_dropout", 0.1);
  run.attention_dropout = from.real("model.attention_dropout", 0.1);
  if (from.real("model.ffn_dropout", 0) != 0) from.refuse("model.ffn_dropout", "must be 0");
  const std::string optimizer = from.word("model.optim.name", "fused_adam");
  if (optimizer == "distributed_fused_adam" || optimizer == "mcore_distributed_optim") run.zero_stage = 1;
  run.overlaps_gradients = from.flag("model.optim.overlap_grad_sync", run.zero_stage == 1);
  run.overlaps_gathers = from.flag("model.optim.overlap_param_sync", run.zero_stage == 1);
  if (const int64_t bucket = from.integer("model.optim.bucket_cap_mb", 0); bucket > 0) run.bucket_bytes = bucket << 20;
  run.learning_rate = from.real("model.optim.lr", 1e-4);
  run.min_learning_rate = from.real("model.optim.sched.min_lr", 0);
  run.weight_decay = from.real("model.optim.weight_decay", 0.1);
  run.grad_clip = from.real("trainer.gradient_clip_val", 1);
  run.beta1 = from.real("model.optim.betas.0", 0.9);
  run.beta2 = from.real("model.optim.betas.1", 0.95);
  run.steps = from.integer("trainer.max_steps", 1);
  if (const ForeignOption* nodes = from.find("trainer.num_nodes"); nodes && from.find("trainer.devices"))
    run.ranks = from.integer("trainer.num_nodes", 1) * from.integer("trainer.devices", 1);
  const std::string precision = from.word("trainer.precision", "bf16");
  run.bf16 = precision != "32" && precision != "32-true";
  const bool fp8 = from.flag("model.fp8");
  if (run.layers == 0) from.refuse("model.num_layers", "gives the number of layers, which this file lacks");
  from.require_known(kNeutral);
  Imported imported = run_file_of(run, path);
  imported.as = fp8 ? "megatron+fp8" : "megatron";
  return imported;
}

}  // namespace slipstream::planner

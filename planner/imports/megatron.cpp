// SPDX-License-Identifier: Apache-2.0
// Arguments of Megatron-LM: words of a shell script or of a YAML list, with the script's variables replaced.

#include <cctype>
#include <cmath>
#include <cstdlib>
#include <map>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "planner/imports/options.h"

namespace slipstream::planner {
namespace {

constexpr int64_t kLargestFile = int64_t{1} << 20;

/// Options that name files, record, start or check, and so do not change the time of a step.
const std::vector<std::string_view> kNeutral = {"log",
                                                "save",
                                                "load",
                                                "eval",
                                                "tensorboard",
                                                "wandb",
                                                "data-",
                                                "vocab-file",
                                                "merge-file",
                                                "tokenizer",
                                                "split",
                                                "dist",
                                                "exit-",
                                                "num-workers",
                                                "seed",
                                                "init-method",
                                                "no-load",
                                                "no-save",
                                                "nproc",
                                                "node",
                                                "nnodes",
                                                "master",
                                                "rdzv",
                                                "mock-data",
                                                "timing",
                                                "train-samples",
                                                "train-data",
                                                "valid-data",
                                                "test-data",
                                                "lr-",
                                                "start-weight",
                                                "end-weight",
                                                "weight-decay-incr",
                                                "override",
                                                "use-checkpoint",
                                                "adam-eps",
                                                "no-masked-softmax",
                                                "no-bias",
                                                "no-rope",
                                                "no-gradient-accumulation-fusion",
                                                "no-persist",
                                                "no-query-key",
                                                "attention-softmax-in-fp32",
                                                "apply-layernorm-1p",
                                                "use-mcore",
                                                "use-legacy",
                                                "attention-backend",
                                                "use-flash",
                                                "accumulate-allreduce",
                                                "grad-reduce-in",
                                                "cross-entropy",
                                                "calculate-per-token",
                                                "manual-gc",
                                                "empty-unused",
                                                "decoupled",
                                                "bf16",
                                                "transformer-impl",
                                                "no-async",
                                                "async-save",
                                                "auto-detect",
                                                "ckpt",
                                                "dataloader",
                                                "no-mmap",
                                                "no-create",
                                                "tiktoken",
                                                "use-pytorch-profiler",
                                                "profile",
                                                "check-for",
                                                "rerun",
                                                "deterministic",
                                                "te-rng",
                                                "no-check",
                                                "ddp-",
                                                "use-distributed-optimizer",
                                                "fp16",
                                                "loss-scale",
                                                "initial-loss",
                                                "min-loss",
                                                "hysteresis",
                                                "make-vocab",
                                                "log-",
                                                "inference",
                                                "num-floating",
                                                "no-ckpt",
                                                "dist-ckpt",
                                                "distributed-backend",
                                                "distributed-timeout",
                                                "kv-channels",
                                                "squared",
                                                "optimizer",
                                                "local-rank",
                                                "jobid",
                                                "use-cpu-initialization",
                                                "reset-",
                                                "eod-",
                                                "create-attention",
                                                "reset_",
                                                "enable-one-logger",
                                                "no-one-logger",
                                                "max_restarts",
                                                "standalone",
                                                "tp-comm",
                                                "overlap-p2p",
                                                "no-overlap-p2p",
                                                "batch-p2p",
                                                "context-parallel-comm",
                                                "cp-comm",
                                                "ffn-hidden",
                                                "rotary",
                                                "norm-epsilon",
                                                "use-rotary-position-embeddings",
                                                "apply-query-key-layer-scaling",
                                                "no-position-embedding",
                                                "bias-",
                                                "masked-softmax",
                                                "gradient-accumulation-fusion",
                                                "DDP-impl",
                                                "checkpoint-activations",
                                                "nccl",
                                                "disable-straggler",
                                                "trust-remote",
                                                "use-persistent",
                                                "max-tokens",
                                                "fim",
                                                "mid-level",
                                                "barrier",
                                                "no-initialization",
                                                "no-use-tokenizer"};

/// Replaces $NAME, ${NAME}, ${NAME:-default} and $((arithmetic)); unknown variables stay.
class Variables {
 public:
  void set(const std::string& name, const std::string& value) { values_[name] = value; }

  std::string replaced(const std::string& text, int depth = 0) const {
    constexpr int kDeepest = 8;
    if (depth > kDeepest) return text;
    std::string out;
    for (size_t i = 0; i < text.size();) {
      if (text[i] != '$' || i + 1 == text.size()) {
        out += text[i++];
      } else if (text.compare(i, 3, "$((") == 0 && text.find("))", i) != std::string::npos) {
        const size_t end = text.find("))", i);
        out += calculated(replaced(named(text.substr(i + 3, end - i - 3)), depth + 1));
        i = end + 2;
      } else if (text[i + 1] == '{' && text.find('}', i) != std::string::npos) {
        const size_t end = text.find('}', i);
        out += value_of(text.substr(i + 2, end - i - 2), text.substr(i, end + 1 - i), depth);
        i = end + 1;
      } else {
        size_t end = i + 1;
        while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_')) ++end;
        out += value_of(text.substr(i + 1, end - i - 1), text.substr(i, end - i), depth);
        i = end;
      }
    }
    return out;
  }

 private:
  std::string value_of(std::string name, const std::string& written, int depth) const {
    std::string otherwise = written;
    if (const size_t mark = name.find(":-"); mark != std::string::npos) {
      otherwise = replaced(name.substr(mark + 2), depth + 1);
      name.resize(mark);
    }
    const auto found = values_.find(name);
    return found == values_.end() || found->second.empty() ? otherwise : replaced(found->second, depth + 1);
  }
  /// Names without a dollar stand for variables in arithmetic.
  std::string named(const std::string& text) const {
    std::string out;
    for (size_t i = 0; i < text.size();) {
      if (std::isalpha(static_cast<unsigned char>(text[i])) && (i == 0 || text[i - 1] != '$')) {
        size_t end = i;
        while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_')) ++end;
        const bool bare = i == 0 || (text[i - 1] != '{' && text[i - 1] != '_');
        out += (bare ? "$" : "") + text.substr(i, end - i);
        i = end;
      } else {
        out += text[i++];
      }
    }
    return out;
  }
  /// Products, quotients, sums and differences of whole numbers; the text itself if it is anything else.
  static std::string calculated(const std::string& text) {
    const char* at = text.c_str();
    const auto skip = [&] {
      while (*at == ' ') ++at;
    };
    bool good = true;
    const auto number = [&]() -> double {
      skip();
      char* end = nullptr;
      const double value = std::strtod(at, &end);
      good = good && end != at;
      at = end;
      skip();
      return value;
    };
    const auto product = [&] {
      double value = number();
      while (good && (*at == '*' || *at == '/')) {
        const char op = *at++;
        const double by = number();
        good = good && (op == '*' || by != 0);
        value = op == '*' ? value * by : good ? std::trunc(value / by) : 0;
      }
      return value;
    };
    double sum = product();
    while (good && (*at == '+' || *at == '-')) {
      const char op = *at++;
      sum += op == '+' ? product() : -product();
    }
    return good && *at == '\0' ? fmt::format("{:.0f}", sum) : text;
  }

  std::map<std::string, std::string> values_;
};

std::string stripped(std::string text) {
  const auto outside = [](char c) { return std::isspace(static_cast<unsigned char>(c)) || c == '"' || c == '\''; };
  while (!text.empty() && outside(text.back())) text.pop_back();
  size_t begin = 0;
  while (begin < text.size() && outside(text[begin])) ++begin;
  return text.substr(begin);
}

/// A line without its comment.
std::string without_comment(const std::string& line) {
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (quote) {
      if (line[i] == quote) quote = 0;
    } else if (line[i] == '"' || line[i] == '\'') {
      quote = line[i];
    } else if (line[i] == '#' && (i == 0 || std::isspace(static_cast<unsigned char>(line[i - 1])))) {
      return line.substr(0, i);
    }
  }
  return line;
}

/// Words outside and inside quotes: scripts keep options in quoted variables.
std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : line + " ") {
    if (!std::isspace(static_cast<unsigned char>(c)) && c != '"' && c != '\'' && c != '\\' && c != '(' && c != ')') {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::exchange(word, ""));
    }
  }
  return words;
}

std::vector<ForeignOption> options_of(const std::string& path) {
  const std::string text = files::read_file(path, files::Owner::data, kLargestFile);
  Variables variables;
  std::vector<ForeignOption> options;
  int64_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = without_comment(text.substr(begin, end - begin));
    begin = end + 1;
    ++line_number;
    std::string assigned = stripped(line);
    for (const char* word : {"export ", "local ", "declare "})
      if (assigned.starts_with(word)) assigned = stripped(assigned.substr(std::string_view(word).size()));
    const size_t equals = assigned.find('=');
    const bool is_name =
        equals != std::string::npos && equals > 0 &&
        assigned.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == equals &&
        assigned[equals] == '=';
    if (is_name && assigned.compare(equals + 1, 1, "(") != 0)
      variables.set(assigned.substr(0, equals), variables.replaced(stripped(assigned.substr(equals + 1))));
    for (const std::string& written : words_of(variables.replaced(is_name ? assigned.substr(equals + 1) : line))) {
      const std::string script = written.substr(written.rfind('/') + 1);
      if (script.starts_with("pretrain_") && script.ends_with(".py") && script != "pretrain_gpt.py")
        throw ConfigError("[import] {}:{}: {} is not supported: only pretrain_gpt.py is.", path, line_number,
                          files::printable(script, 60));
      if (written.starts_with("--") && written.size() > 2) {
        std::string name = written.substr(2), value;
        if (const size_t at = name.find_first_of("=:"); at != std::string::npos) {
          value = name.substr(at + 1);
          name.resize(at);
        }
        options.push_back({name, stripped(value), fmt::format("{}:{}", path, line_number)});
      } else if (!options.empty() && options.back().value.empty() &&
                 options.back().where == fmt::format("{}:{}", path, line_number)) {
        options.back().value = stripped(written);
      }
    }
  }
  return options;
}

}  // namespace

Imported import_megatron(const std::string& path) {
  ForeignOptions from(options_of(path), "--");
  if (!from.find("num-layers") && !from.find("encoder-num-layers"))
    from.refuse("num-layers", "gives the number of layers, which this file lacks");
  for (const char* option : {"num-experts",
                             "expert-model-parallel-size",
                             "moe-router-topk",
                             "multi-latent-attention",
                             "hybrid-override-pattern",
                             "hybrid-layer-pattern",
                             "is-hybrid-model",
                             "mtp-num-layers",
                             "encoder-num-layers",
                             "decoder-num-layers",
                             "encoder-seq-length",
                             "decoder-seq-length",
                             "vocab-extra-ids",
                             "bert-no-binary-head",
                             "use-bert",
                             "retro",
                             "apply-residual-connection-post-layernorm",
                             "qk-layernorm",
                             "window-size",
                             "squared-relu",
                             "quick-geglu",
                             "use-megatron-fsdp",
                             "use-torch-fsdp2",
                             "use-custom-fsdp",
                             "optimizer-cpu-offload",
                             "cpu-offloading",
                             "position-embedding-scale",
                             "heterogeneous-layers-config-path",
                             "spec",
                             "add-qkv-bias",
                             "softmax-type",
                             "decoder-first-pipeline-num-layers",
                             "decoder-last-pipeline-num-layers",
                             "pipeline-model-parallel-layout",
                             "account-for-embedding-in-pipeline-split",
                             "account-for-loss-in-pipeline-split",
                             "fp4-format",
                             "mxfp",
                             "image",
                             "hierarchical-context-parallel-sizes",
                             "rampup-batch-size",
                             "step-batch-size-schedule",
                             "tensor-model-parallel-size-2",
                             "standalone-embedding-stage",
                             "experimental-attention-variant"})
    if (const ForeignOption* found = from.find(option);
        found && !(std::string_view(option) == "expert-model-parallel-size" && found->value == "1") &&
        !std::string_view(option).starts_with("rampup") && !std::string_view(option).starts_with("step-batch"))
      from.refuse_if_on(option, "is not supported");
  ForeignRun run;
  run.layers = from.integer("num-layers", 0);
  run.width = from.integer("hidden-size", 0);
  run.heads = from.integer("num-attention-heads", 0);
  run.sequence = from.integer("seq-length", 0);
  run.context = from.integer("max-position-embeddings", run.sequence);
  run.ffn_width = from.integer("ffn-hidden-size", 0);
  const bool grouped = from.flag("group-query-attention");
  const int64_t groups = from.integer("num-query-groups", 0);
  if (grouped) run.kv_heads = groups;
  if (const int64_t channels = from.integer("kv-channels", 0); channels > 0 && channels * run.heads != run.width)
    from.refuse("kv-channels", fmt::format("must be hidden-size / num-attention-heads = {}", run.width / run.heads));
  const bool swiglu = from.flag("swiglu"), rms = from.word("normalization", "LayerNorm") == "RMSNorm",
             rope = from.word("position-embedding-type", "learned_absolute") == "rope" ||
                    from.flag("use-rotary-position-embeddings"),
             plain = from.flag("disable-bias-linear");
  run.llama = swiglu || rms || rope;
  if (run.llama && !swiglu)
    from.refuse("swiglu", "is needed with RMSNorm or rotary positions: other units are not supported");
  if (run.llama && !rms) from.refuse("normalization", "must be RMSNorm with swiglu or rotary positions");
  if (run.llama && !rope) from.refuse("position-embedding-type", "must be rope with swiglu or RMSNorm");
  if (run.llama && !plain) from.refuse("disable-bias-linear", "is needed with swiglu: biases are not supported there");
  if (!run.llama && grouped) from.refuse("group-query-attention", "is supported with RMSNorm, rope and swiglu only");
  run.tied = !from.flag("untie-embeddings-and-output-weights");
  run.rope_theta = from.real("rotary-base", 10000);
  run.norm_eps = from.real("norm-epsilon", 1e-5);
  run.vocab = from.integer("vocab-size", 0);
  if (run.vocab == 0) run.vocab = from.integer("padded-vocab-size", 0);
  run.micro_batch = from.integer("micro-batch-size", 1);
  run.global_batch = from.integer("global-batch-size", 0);
  run.steps = from.integer("train-iters", 1);
  run.tensor = from.integer("tensor-model-parallel-size", 1);
  run.pipeline = from.integer("pipeline-model-parallel-size", 1);
  run.context_ranks = from.integer("context-parallel-size", 1);
  run.sequence_parallel = from.flag("sequence-parallel");
  if (const int64_t per_stage = from.integer("num-layers-per-virtual-pipeline-stage", 0);
      per_stage > 0 && run.pipeline > 1)
    run.virtual_stages = std::max<int64_t>(1, run.layers / (run.pipeline * per_stage));
  if (const int64_t chunks = from.integer("num-virtual-stages-per-pipeline-rank", 0); chunks > 0)
    run.virtual_stages = chunks;
  if (from.flag("use-distributed-optimizer")) run.zero_stage = 1;
  run.overlaps_gradients = from.flag("overlap-grad-reduce");
  run.overlaps_gathers = from.flag("overlap-param-gather");
  run.overlaps_tensor = from.flag("tp-comm-overlap");
  // Older versions have other names.
  const std::string old_method = from.word("activations-checkpoint-method", "");
  const bool all = !old_method.empty() || from.find("checkpoint-activations");
  set_recomputation(
      run, from.flag("recompute-activations") ? "selective" : from.word("recompute-granularity", all ? "full" : ""),
      from.word("recompute-method", old_method),
      from.integer("recompute-num-layers", from.integer("activations-checkpoint-num-layers", 1)));
  // Megatron-Core drops 10 % unless told otherwise.
  run.hidden_dropout = from.real("hidden-dropout", 0.1);
  run.attention_dropout = from.real("attention-dropout", 0.1);
  run.bf16 = from.flag("bf16") || from.flag("fp16");
  run.learning_rate = from.real("lr", 1e-4);
  run.min_learning_rate = from.real("min-lr", 0);
  run.weight_decay = from.real("weight-decay", 0.01);
  run.grad_clip = from.real("clip-grad", 1);
  run.beta1 = from.real("adam-beta1", 0.9);
  run.beta2 = from.real("adam-beta2", 0.999);
  const bool fp8 = from.find("fp8-format") != nullptr;
  from.require_known([&] {
    std::vector<std::string_view> neutral = kNeutral;
    if (fp8) neutral.insert(neutral.end(), {"fp8"});
    return neutral;
  }());
  for (const char* nodes : {"nnodes", "nproc_per_node", "nproc-per-node"})
    if (const ForeignOption* option = from.find(nodes); option && option->value.find('$') == std::string::npos)
      run.ranks = std::max<int64_t>(1, run.ranks) * from.integer(nodes, 1);
  Imported imported = run_file_of(run, path);
  imported.as = fp8 ? "megatron+fp8" : "megatron";
  return imported;
}

}  // namespace slipstream::planner

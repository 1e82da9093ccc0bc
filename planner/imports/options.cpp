// SPDX-License-Identifier: Apache-2.0
// Look-ups with errors that name the option and its place, and the run file of an imported run.

#include "planner/imports/options.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/units.h"

namespace slipstream::planner {
namespace {

bool is_truth(std::string_view value, std::initializer_list<std::string_view> words) {
  std::string lower(value);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::find(words.begin(), words.end(), lower) != words.end();
}
bool is_true(std::string_view value) { return is_truth(value, {"", "true", "yes", "1", "on"}); }
bool is_off(std::string_view value) {
  return is_truth(value, {"false", "no", "0", "0.0", "none", "null", "off", "~", "[]"});
}

}  // namespace

ForeignOptions::ForeignOptions(std::vector<ForeignOption> options, std::string prefix)
    : options_(std::move(options)), prefix_(std::move(prefix)) {}

const ForeignOption* ForeignOptions::find(std::string_view name) {
  used_.emplace(name);
  const auto found = std::find_if(options_.rbegin(), options_.rend(),
                                  [&](const ForeignOption& option) { return option.name == name; });
  if (found == options_.rend() || is_truth(found->value, {"null", "none", "~"})) return nullptr;
  return &*found;
}

int64_t ForeignOptions::integer(std::string_view name, int64_t otherwise) {
  const double value = real(name, static_cast<double>(otherwise));
  constexpr double kMost = 9e15;
  if (value != std::floor(value) || std::abs(value) > kMost) refuse(name, "needs a whole number");
  return static_cast<int64_t>(value);
}

double ForeignOptions::real(std::string_view name, double otherwise) {
  const ForeignOption* option = find(name);
  if (!option) return otherwise;
  std::string digits = option->value;
  std::erase(digits, '_');
  char* end = nullptr;
  const double value = std::strtod(digits.c_str(), &end);
  if (digits.empty() || *end != '\0' || !std::isfinite(value)) refuse(name, "needs a number that the file sets");
  return value;
}

std::string ForeignOptions::word(std::string_view name, const std::string& otherwise) {
  const ForeignOption* option = find(name);
  return option ? option->value : otherwise;
}

bool ForeignOptions::flag(std::string_view name, bool otherwise) {
  const ForeignOption* option = find(name);
  if (!option) return otherwise;
  if (is_true(option->value)) return true;
  if (!is_off(option->value)) refuse(name, "needs true or false");
  return false;
}

void ForeignOptions::refuse(std::string_view name, const std::string& problem) const {
  const auto found = std::find_if(options_.rbegin(), options_.rend(),
                                  [&](const ForeignOption& option) { return option.name == name; });
  if (found == options_.rend()) throw ConfigError("[import] {}{} is missing: it {}.", prefix_, name, problem);
  throw ConfigError("[import] {}: {}{}{} {}.", found->where, prefix_, name,
                    found->value.empty() ? "" : " = " + files::printable(found->value, 60), problem);
}

void ForeignOptions::refuse_if_on(std::string_view name, const std::string& problem) {
  const ForeignOption* option = find(name);
  if (option && !is_off(option->value)) refuse(name, problem);
}

void ForeignOptions::require_known(const std::vector<std::string_view>& neutral) const {
  for (const ForeignOption& option : options_) {
    const bool known = used_.contains(option.name) || is_off(option.value) ||
                       std::any_of(neutral.begin(), neutral.end(),
                                   [&](std::string_view start) { return option.name.starts_with(start); });
    if (!known)
      throw ConfigError("[import] {}: {}{} is not supported: this version does not know whether it changes a step.",
                        option.where, prefix_, files::printable(option.name, 80));
  }
}

void set_recomputation(ForeignRun& run, const std::string& granularity, const std::string& method, int64_t layers) {
  if (granularity == "selective") run.recompute = "selective";
  if (granularity != "full") return;
  run.recompute = "full";
  if (method != "block") return;
  const int64_t of_part = run.layers / std::max<int64_t>(1, run.pipeline * run.virtual_stages);
  if (layers <= 0)
    run.recompute = "none";
  else if (layers < of_part)
    run.recompute_layers = layers;
}

Imported run_file_of(const ForeignRun& run, const std::string& source) {
  const auto need = [](int64_t value, const char* what) {
    if (value <= 0) throw ConfigError("[import] the configuration sets no {}. Add it.", what);
  };
  need(run.layers, "number of layers");
  need(run.width, "hidden size");
  need(run.heads, "number of attention heads");
  need(run.sequence, "sequence length");
  Imported imported{.ranks = static_cast<int>(run.ranks)};
  std::string& text = imported.run_file;
  const auto table = [&](const char* name) { text += fmt::format("\n[{}]\n", name); };
  const auto key = [&](const char* name, const auto& value) { text += fmt::format("{} = {}\n", name, value); };
  const auto quoted = [](const std::string& value) { return '"' + value + '"'; };
  text = fmt::format("# Imported from {}.\n", files::printable(source, 200));
  table("model");
  key("family", run.llama ? "\"llama\"" : "\"gpt2\"");
  key("layers", run.layers);
  key("heads", run.heads);
  if (run.kv_heads > 0) key("kv_heads", run.kv_heads);
  key("width", run.width);
  if (run.ffn_width > 0) key("ffn_width", run.ffn_width);
  key("context", std::max(run.context, run.sequence));
  if (run.vocab == 0) imported.notes.emplace_back("vocabulary not given: 50304 tokens");
  key("vocab_size", run.vocab > 0 ? run.vocab : 50304);
  if (run.tied) key("tie_embeddings", *run.tied);
  if (run.llama) key("rope_theta", fmt::format("{:.1f}", run.rope_theta));
  key("norm_eps", run.norm_eps);
  if (run.hidden_dropout > 0) {
    key("embd_pdrop", run.hidden_dropout);
    key("resid_pdrop", run.hidden_dropout);
  }
  if (run.attention_dropout > 0) key("attn_pdrop", run.attention_dropout);
  table("data");
  key("train", "\"tokens.bin\"");
  key("tokenizer", "\"bytes\"");
  table("train");
  key("steps", std::max<int64_t>(1, run.steps));
  key("sequence_length", run.sequence);
  key("micro_batch_size", run.micro_batch);
  if (run.global_batch > 0) key("global_batch_size", run.global_batch);
  key("dtype", run.bf16 ? "\"bfloat16\"" : "\"float32\"");
  key("eval_interval", 0);
  key("recompute", quoted(run.recompute));
  if (run.recompute_layers > 0) key("recompute_layers", run.recompute_layers);
  table("optimizer");
  key("learning_rate", run.learning_rate);
  if (run.min_learning_rate > 0 && run.min_learning_rate <= run.learning_rate)
    key("min_learning_rate", run.min_learning_rate);
  key("weight_decay", run.weight_decay);
  key("grad_clip", run.grad_clip);
  key("beta1", run.beta1);
  key("beta2", run.beta2);
  table("parallel");
  key("tensor", run.tensor);
  key("pipeline", run.pipeline);
  key("context", run.context_ranks);
  key("sequence_parallel", run.sequence_parallel && run.tensor > 1);
  table("pipeline");
  key("schedule", quoted(run.pipeline > 1 && run.virtual_stages > 1 ? "interleaved_1f1b" : run.schedule));
  if (run.pipeline > 1 && run.virtual_stages > 1) key("virtual_stages", run.virtual_stages);
  table("zero");
  key("stage", run.zero_stage);
  if (run.shard_size > 0) key("shard_size", run.shard_size);
  table("overlap");
  key("grad_reduce", quoted(run.overlaps_gradients ? "bucketed" : "flat"));
  key("param_gather", run.overlaps_gathers);
  if (!run.overlaps_tensor) key("tensor_chunks", 1);
  if (run.bucket_bytes > 0) key("bucket_size", quoted(fmt::format("{}B", run.bucket_bytes)));
  table("device");
  key("kind", "\"cuda\"");
  return imported;
}

Imported import_run(const std::string& format, const std::string& path) {
  if (format == "megatron") return import_megatron(path);
  if (format == "nemo") return import_nemo(path);
  if (format == "torchtitan") return import_torchtitan(path);
  throw ConfigError("[import] unknown format '{}'. Use megatron, torchtitan or nemo.", files::printable(format, 40));
}

}  // namespace slipstream::planner

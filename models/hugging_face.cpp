// SPDX-License-Identifier: Apache-2.0
// Reads and writes config.json. Keys that would change the arithmetic are checked, and others are ignored.

#include "models/hugging_face.h"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/plural.h"

namespace slipstream::models {
namespace {

/// Larger sizes indicate a damaged file.
constexpr int64_t kMaxLayers = 65536, kMaxSize = int64_t{1} << 24;

class Config {
 public:
  Config(const Json& json, const std::string& where) : json_(json), where_(where) {}

  [[noreturn]] void fail(std::string_view key, const std::string& problem) const {
    throw CheckpointError("[model] {}: {} {}. Give the folder of a supported model.", where_, key, problem);
  }
  /// Null if the key is absent or null.
  const Json* find(std::string_view key) const {
    const Json* value = json_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  int64_t whole(std::string_view key, std::optional<int64_t> absent = {}, int64_t most = kMaxSize) const {
    const Json* value = find(key);
    if (value == nullptr && absent) return *absent;
    if (value == nullptr) fail(key, "is missing");
    if (!value->is_int()) fail(key, fmt::format("is {}, need an integer", value->type_name()));
    if (value->as_int() < 1 || value->as_int() > most)
      fail(key, fmt::format("= {}, need 1 to {}", value->as_int(), most));
    return value->as_int();
  }
  double real(std::string_view key, double absent) const {
    const Json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_number()) fail(key, fmt::format("is {}, need a number", value->type_name()));
    return value->as_double();
  }
  bool boolean(std::string_view key, bool absent) const {
    const Json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_bool()) fail(key, fmt::format("is {}, need true or false", value->type_name()));
    return value->as_bool();
  }
  std::string text(std::string_view key, std::string_view absent) const {
    const Json* value = find(key);
    if (value == nullptr) return std::string(absent);
    if (!value->is_string()) fail(key, fmt::format("is {}, need a string", value->type_name()));
    return value->as_string();
  }
  void need(std::string_view key, bool is_right, std::string_view right) const {
    if (is_right) return;
    const Json* value = find(key);
    fail(key, fmt::format("= {} is not supported, need {}",
                          value == nullptr ? "(absent)" : files::printable(value->dump(), 80), right));
  }
  /// The library's default only without the key: null is none.
  bool has(std::string_view key) const { return json_.find(key) != nullptr; }

 private:
  const Json& json_;
  const std::string& where_;
};

HuggingFaceModel read_gpt2(const Config& config) {
  const int64_t width = config.whole("n_embd", 768);
  const std::string activation = config.text("activation_function", "gelu_new");
  config.need("activation_function", activation == "gelu_new" || activation == "gelu_pytorch_tanh", "\"gelu_new\"");
  config.need("scale_attn_weights", config.boolean("scale_attn_weights", true), "true");
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"})
    config.need(key, !config.boolean(key, false), "false");
  const int64_t heads = config.whole("n_head", 12);
  const auto rate = [&](const char* key) { return config.real(key, 0.1); };
  return {
      .options = {.family = Family::gpt2,
                  .layers = config.whole("n_layer", 12, kMaxLayers),
                  .heads = heads,
                  .kv_heads = heads,
                  .width = width,
                  .ffn_width = config.whole("n_inner", 4 * width),
                  .context = config.whole("n_positions", 1024),
                  .vocab = config.whole("vocab_size", 50257),
                  .tie_embeddings = config.boolean("tie_word_embeddings", true),
                  .norm_eps = static_cast<float>(config.real("layer_norm_epsilon", 1e-5))},
      .dropout = {.embedding = rate("embd_pdrop"), .residual = rate("resid_pdrop"), .attention = rate("attn_pdrop")},
      .prefix = "transformer."};
}

/// A family whose config.json has Llama's keys, and the library's defaults of those that may be absent.
struct LlamaDialect {
  Family family;
  const char* model_type;
  const char* architecture;
  int64_t kv_heads;  // 0: as heads
  int64_t ffn_width, context, vocab;
  int32_t begin_of_text, end_of_text;
};
constexpr std::array<LlamaDialect, 4> kLlamaDialects{{
    {Family::llama, "llama", "LlamaForCausalLM", 0, 11008, 2048, 32000, 1, 2},
    {Family::mistral, "mistral", "MistralForCausalLM", 8, 14336, 4096 * 32, 32000, 1, 2},
    {Family::qwen2, "qwen2", "Qwen2ForCausalLM", 0, 22016, 32768, 151936, -1, -1},
    {Family::qwen3, "qwen3", "Qwen3ForCausalLM", 0, 22016, 32768, 151936, -1, -1},
}};

/// Theta and scaling. Before version 5 of the library they are rope_theta and rope_scaling, since then both are in
/// rope_parameters.
void read_rope(const Config& config, ModelOptions& options) {
  double theta = config.real("rope_theta", 10000);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* rope = config.find(key);
    if (rope == nullptr) continue;
    config.need(key, rope->is_object(), "an object");
    const Json* kind = rope->find("rope_type") != nullptr ? rope->find("rope_type") : rope->find("type");
    const std::string name = kind == nullptr ? "default" : kind->is_string() ? kind->as_string() : kind->dump();
    config.need(key, name == "default" || name == "llama3", "rope_type \"default\" or \"llama3\"");
    if (const Json* value = rope->find("rope_theta"); value != nullptr && value->is_number())
      theta = value->as_double();
    if (name == "default") continue;
    const auto number = [&](const char* part) {
      const Json* value = rope->find(part);
      const double found = value != nullptr && value->is_number() ? value->as_double() : 0;
      config.need(key, found > 0 && found < kMaxSize, fmt::format("{} above 0 in it", part));
      return static_cast<float>(found);
    };
    options.rope_scaling = {.factor = number("factor"),
                            .low_freq_factor = number("low_freq_factor"),
                            .high_freq_factor = number("high_freq_factor"),
                            .original_context = static_cast<int64_t>(number("original_max_position_embeddings"))};
    config.need(key, options.rope_scaling.low_freq_factor < options.rope_scaling.high_freq_factor,
                "low_freq_factor below high_freq_factor in it");
  }
  options.rope_theta = static_cast<float>(theta);
}

HuggingFaceModel read_llama(const Config& config, const LlamaDialect& dialect) {
  const int64_t width = config.whole("hidden_size", 4096), heads = config.whole("num_attention_heads", 32);
  const std::string activation = config.text("hidden_act", "silu");
  config.need("hidden_act", activation == "silu" || activation == "swish", "\"silu\"");
  const bool llama = dialect.family == Family::llama, qwen3 = dialect.family == Family::qwen3;
  // The other families have no such keys, and the library ignores them.
  if (llama || qwen3) config.need("attention_bias", !config.boolean("attention_bias", false), "false");
  if (llama) config.need("mlp_bias", !config.boolean("mlp_bias", false), "false");
  const int64_t layers = config.whole("num_hidden_layers", 32, kMaxLayers);
  const int64_t context = config.whole("max_position_embeddings", dialect.context);
  int64_t window = 0;
  if (dialect.family == Family::mistral && !(config.has("sliding_window") && config.find("sliding_window") == nullptr))
    window = config.whole("sliding_window", 4096);
  if (dialect.family == Family::qwen2 || qwen3)
    // Only layers from max_window_layers on have a window.
    config.need("use_sliding_window",
                !config.boolean("use_sliding_window", false) || config.whole("max_window_layers", 28) >= layers,
                "false, or max_window_layers of at least the number of layers");
  std::optional<int64_t> head_dim;
  if (width % heads == 0) head_dim = width / heads;
  if (qwen3) head_dim = 128;
  HuggingFaceModel model{
      .options = {.family = dialect.family,
                  .layers = layers,
                  .heads = heads,
                  .kv_heads = config.whole("num_key_value_heads", dialect.kv_heads > 0 ? dialect.kv_heads : heads),
                  .head_dim = config.whole("head_dim", head_dim),
                  .width = width,
                  .ffn_width = config.whole("intermediate_size", dialect.ffn_width),
                  .context = context,
                  .vocab = config.whole("vocab_size", dialect.vocab),
                  .tie_embeddings = config.boolean("tie_word_embeddings", false),
                  .window = window < context ? window : 0,
                  .norm_eps = static_cast<float>(config.real("rms_norm_eps", 1e-6))},
      .prefix = "model."};
  read_rope(config, model.options);
  return model;
}

const LlamaDialect* dialect_of(Family family) {
  const auto* found = std::find_if(kLlamaDialects.begin(), kLlamaDialects.end(),
                                   [&](const LlamaDialect& dialect) { return dialect.family == family; });
  return found == kLlamaDialects.end() ? nullptr : found;
}

/// 8 as 8.0: the library warns about factors that are no real numbers.
template <typename Real>
std::string with_point(Real value) {
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string id_or_null(int32_t id) { return id < 0 ? "null" : fmt::format("{}", id); }
/// null, one id, or a list.
std::string ids_or_null(const std::vector<int32_t>& ids) {
  if (ids.size() <= 1) return id_or_null(ids.empty() ? -1 : ids[0]);
  return fmt::format("[{}]", fmt::join(ids, ", "));
}

}  // namespace

TextIds read_text_ids(const Json& config, int64_t vocab) {
  const auto id_of = [&](const Json& value) {
    return value.is_int() && value.as_int() >= 0 && value.as_int() < vocab ? static_cast<int32_t>(value.as_int()) : -1;
  };
  const auto ids_of = [&](std::string_view key) {
    std::vector<int32_t> ids;
    const auto add = [&](const Json& value) {
      if (const int32_t id = id_of(value); id >= 0) ids.push_back(id);
    };
    const Json* value = config.find(key);
    if (value == nullptr) return ids;
    if (!value->is_array()) add(*value);
    if (value->is_array())
      for (const Json& one : value->as_array()) add(one);
    return ids;
  };
  const auto one_of = [&](std::string_view key) {
    const std::vector<int32_t> ids = ids_of(key);
    return ids.empty() ? -1 : ids[0];
  };
  return {one_of("bos_token_id"), ids_of("eos_token_id"), one_of("pad_token_id")};
}

HuggingFaceModel read_hugging_face_config(const Json& json, const std::string& where, int64_t tensors) {
  const Config config(json, where);
  const std::string type = config.text("model_type", "");
  const auto* dialect = std::find_if(kLlamaDialects.begin(), kLlamaDialects.end(),
                                     [&](const LlamaDialect& row) { return type == row.model_type; });
  if (type != "gpt2" && dialect == kLlamaDialects.end()) {
    std::string supported = "\"gpt2\"";
    for (const LlamaDialect& row : kLlamaDialects)
      supported += fmt::format("{}\"{}\"", &row == &kLlamaDialects.back() ? " or " : ", ", row.model_type);
    config.fail("model_type", fmt::format("= {} is not supported, need {}", files::shown(type), supported));
  }
  HuggingFaceModel model = type == "gpt2" ? read_gpt2(config) : read_llama(config, *dialect);
  ModelOptions& options = model.options;
  if (options.layers > tensors)
    throw CheckpointError(
        "[model] {} has {} layers, but the files beside it have only {}. Restore it, or copy the files that are "
        "missing.",
        where, options.layers, counted(tensors, "tensor"));
  config.need(type == "gpt2" ? "n_head" : "num_attention_heads",
              options.head_dim > 0 || options.width % options.heads == 0,
              fmt::format("a divisor of the width, {}", options.width));
  model.ids = read_text_ids(json, options.vocab);
  // The library's defaults, unless the vocabulary is another.
  const int32_t begin = dialect == kLlamaDialects.end() ? 50256 : dialect->begin_of_text,
                end = dialect == kLlamaDialects.end() ? 50256 : dialect->end_of_text;
  if (!config.has("bos_token_id") && begin < options.vocab) model.ids.begin_of_text = begin;
  if (!config.has("eos_token_id") && end >= 0 && end < options.vocab) model.ids.ends_of_text = {end};
  options.batch = 1;
  options.tokens = options.context;
  options.global_tokens = options.context;
  return model;
}

std::string hugging_face_generation_config(const TextIds& ids) {
  std::string out = "{\n";
  if (ids.begin_of_text >= 0) out += fmt::format("  \"bos_token_id\": {},\n", ids.begin_of_text);
  if (!ids.ends_of_text.empty()) out += fmt::format("  \"eos_token_id\": {},\n", ids_or_null(ids.ends_of_text));
  if (ids.padding >= 0) out += fmt::format("  \"pad_token_id\": {},\n", ids.padding);
  if (out.ends_with(",\n")) out.erase(out.size() - 2, 1);
  return out + "}\n";
}

std::string hugging_face_config(const ModelOptions& o, const TextIds& ids) {
  const char* dtype = o.dtype == DType::bf16 ? "bfloat16" : "float32";
  const std::string begin = id_or_null(ids.begin_of_text);
  std::string end = ids_or_null(ids.ends_of_text);
  if (ids.padding >= 0) end += fmt::format(",\n  \"pad_token_id\": {}", ids.padding);
  if (o.family == Family::gpt2)
    return fmt::format(
        "{{\n  \"model_type\": \"gpt2\",\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"vocab_size\": {},\n"
        "  \"n_positions\": {},\n  \"n_embd\": {},\n  \"n_layer\": {},\n  \"n_head\": {},\n  \"n_inner\": {},\n"
        "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": {},\n  \"resid_pdrop\": {},\n"
        "  \"embd_pdrop\": {},\n  \"attn_pdrop\": {},\n  \"bos_token_id\": {},\n  \"eos_token_id\": {},\n"
        "  \"tie_word_embeddings\": {},\n  \"torch_dtype\": \"{}\"\n}}\n",
        o.vocab, o.context, o.width, o.layers, o.heads, o.ffn_width, o.norm_eps, with_point(o.dropout.residual),
        with_point(o.dropout.embedding), with_point(o.dropout.attention), begin, end, o.tie_embeddings, dtype);
  const LlamaDialect* dialect = dialect_of(o.family);
  SLIP_ASSERT(dialect != nullptr);
  const kernels::RopeScaling& r = o.rope_scaling;
  const std::string scaling = r.factor == 0 ? "\"rope_type\": \"default\""
                                            : fmt::format(
                                                  "\"rope_type\": \"llama3\", \"factor\": {}, \"low_freq_factor\": {}, "
                                                  "\"high_freq_factor\": {}, \"original_max_position_embeddings\": {}",
                                                  with_point(r.factor), with_point(r.low_freq_factor),
                                                  with_point(r.high_freq_factor), r.original_context);
  std::string more;
  if (r.factor != 0) more += fmt::format("  \"rope_scaling\": {{{}}},\n", scaling);
  if (o.family == Family::mistral)
    more += fmt::format("  \"sliding_window\": {},\n", o.window > 0 ? fmt::format("{}", o.window) : "null");
  if (o.family == Family::qwen2 || o.family == Family::qwen3) more += "  \"use_sliding_window\": false,\n";
  if (o.family == Family::llama || o.family == Family::qwen3) more += "  \"attention_bias\": false,\n";
  if (o.family == Family::llama) more += "  \"mlp_bias\": false,\n";
  return fmt::format(
      "{{\n  \"model_type\": \"{}\",\n  \"architectures\": [\"{}\"],\n  \"vocab_size\": {},\n"
      "  \"max_position_embeddings\": {},\n  \"hidden_size\": {},\n  \"intermediate_size\": {},\n"
      "  \"num_hidden_layers\": {},\n  \"num_attention_heads\": {},\n  \"num_key_value_heads\": {},\n"
      "  \"head_dim\": {},\n  \"hidden_act\": \"silu\",\n  \"rms_norm_eps\": {},\n  \"rope_theta\": {},\n"
      "  \"rope_parameters\": {{{}, \"rope_theta\": {}}},\n{}  \"bos_token_id\": {},\n  \"eos_token_id\": {},\n"
      "  \"tie_word_embeddings\": {},\n  \"torch_dtype\": \"{}\"\n}}\n",
      dialect->model_type, dialect->architecture, o.vocab, o.context, o.width, o.ffn_width, o.layers, o.heads,
      o.kv_heads, o.size_of_head(), o.norm_eps, o.rope_theta, scaling, o.rope_theta, more, begin, end, o.tie_embeddings,
      dtype);
}

}  // namespace slipstream::models

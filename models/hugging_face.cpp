// SPDX-License-Identifier: Apache-2.0
// Reads and writes config.json. Every key is read, known to change no arithmetic, or refused (config_json.h).

#include "models/hugging_face.h"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/plural.h"
#include "engine/config/validate.h"
#include "models/common/config_json.h"
#include "models/common/expert_keys.h"

namespace slipstream::models {
namespace {

constexpr int64_t kMaxLayers = 65536;

HuggingFaceModel read_gpt2(ConfigJson& config) {
  for (const auto& [key, alias] : {std::pair{"n_embd", "hidden_size"},
                                   {"n_positions", "max_position_embeddings"},
                                   {"n_head", "num_attention_heads"},
                                   {"n_layer", "num_hidden_layers"}})
    config.alias(key, alias);
  const int64_t width = config.whole("n_embd", 768);
  const std::string activation = config.text("activation_function", "gelu_new");
  config.need("activation_function",
              activation == "gelu_new" || activation == "gelu_pytorch_tanh" || activation == "gelu_fast",
              "\"gelu_new\"");
  config.need("scale_attn_weights", config.boolean("scale_attn_weights", true), "true");
  config.need("scale_attn_by_inverse_layer_idx", !config.boolean("scale_attn_by_inverse_layer_idx", false), "false");
  const int64_t heads = config.whole("n_head", 12);
  return {.options = {.family = Family::gpt2,
                      .layers = config.whole("n_layer", 12, kMaxLayers),
                      .heads = heads,
                      .kv_heads = heads,
                      .width = width,
                      .ffn_width = config.whole("n_inner", 4 * width),
                      .context = config.whole("n_positions", 1024),
                      .vocab = config.whole("vocab_size", 50257),
                      .tie_embeddings = config.boolean("tie_word_embeddings", true),
                      .norm_eps = static_cast<float>(config.real("layer_norm_epsilon", 1e-5))},
          .dropout = {.embedding = config.rate("embd_pdrop", 0.1),
                      .residual = config.rate("resid_pdrop", 0.1),
                      .attention = config.rate("attn_pdrop", 0.1)},
          .prefix = "transformer.",
          .table = "transformer.wte.weight"};
}

/// Which layers have the window of `sliding_window` if there are no `layer_types`. `all_if_used`: all layers if
/// `use_sliding_window` is true.
enum class Windows { none, all, all_if_used, from_max_window_layers };

/// A family whose config.json has Llama's keys, and the library's defaults of those keys that may be absent.
struct LlamaDialect {
  Family family;
  const char* model_type;
  const char* name;  // the name of its classes
  int64_t kv_heads;  // 0: the number of heads
  int64_t ffn_width, context, vocab;
  int32_t begin_of_text, end_of_text;
  Windows windows;
  int64_t window = 4096;
  double norm_eps = 1e-6, rope_theta = 10000;
  ExpertDefaults experts = {};
};
/// Ministral is Mistral with layer_types. No library opens a folder of the last one: with the name of Qwen3-MoE, they
/// would ignore the settings that its classes lack.
constexpr std::array<LlamaDialect, 8> kLlamaDialects{{
    {Family::llama, "llama", "Llama", 0, 11008, 2048, 32000, 1, 2, Windows::none},
    {Family::mistral, "mistral", "Mistral", 8, 14336, 4096 * 32, 32000, 1, 2, Windows::all},
    {Family::mistral, "ministral", "Ministral", 8, 14336, 4096 * 32, 32000, 1, 2, Windows::all},
    {Family::qwen2, "qwen2", "Qwen2", 0, 22016, 32768, 151936, -1, -1, Windows::from_max_window_layers},
    {Family::qwen3, "qwen3", "Qwen3", 0, 22016, 32768, 151936, -1, -1, Windows::from_max_window_layers},
    {Family::mixtral, "mixtral", "Mixtral", 8, 14336, 4096 * 32, 32000, 1, 2, Windows::all, 0, 1e-5, 1e6, {8, 2}},
    {Family::qwen3_moe,
     "qwen3_moe",
     "Qwen3Moe",
     4,
     6144,
     32768,
     151936,
     -1,
     -1,
     Windows::all_if_used,
     4096,
     1e-6,
     10000,
     {128, 8}},
    {Family::qwen3_moe,
     "slipstream_moe",
     "SlipstreamMoe",
     4,
     6144,
     32768,
     151936,
     -1,
     -1,
     Windows::all_if_used,
     4096,
     1e-6,
     10000,
     {128, 8, true}},
}};

/// The contents of rope_scaling or rope_parameters: the frequencies, and theta if the object has it.
struct Rope {
  std::optional<double> theta;
  kernels::RopeScaling scaling;
};

Rope read_rope_object(const ConfigJson& config, const char* key, const Json& rope) {
  config.need(key, rope.is_object(), "an object");
  const Json *type = rope.find("rope_type"), *older = rope.find("type");
  config.need(key, type == nullptr || older == nullptr || *type == *older, "one type");
  const Json* kind = type != nullptr ? type : older;
  const std::string name = kind == nullptr ? "default" : kind->is_string() ? kind->as_string() : kind->dump();
  config.need(key, name == "default" || name == "llama3", "rope_type \"default\" or \"llama3\"");
  const auto number = [&](const char* part) {
    const Json* value = rope.find(part);
    const double found = value != nullptr && value->is_number() ? value->as_double() : 0;
    config.need(key, found > 0 && found < 1e12, fmt::format("{} above 0 in it", part));
    return found;
  };
  std::vector<std::string_view> used = {"rope_type", "type", "rope_theta"};
  Rope read;
  if (rope.find("rope_theta") != nullptr) read.theta = number("rope_theta");
  if (name == "llama3") {
    const auto factor = [&](const char* part) {
      used.push_back(part);
      const double value = number(part);
      config.need(key, value < ConfigJson::kMaxSize, fmt::format("{} below {} in it", part, ConfigJson::kMaxSize));
      return static_cast<float>(value);
    };
    read.scaling = {.factor = factor("factor"),
                    .low_freq_factor = factor("low_freq_factor"),
                    .high_freq_factor = factor("high_freq_factor"),
                    .original_context = static_cast<int64_t>(factor("original_max_position_embeddings"))};
    config.need(key, read.scaling.low_freq_factor < read.scaling.high_freq_factor,
                "low_freq_factor below high_freq_factor in it");
  }
  for (const auto& [part, value] : rope.as_object()) {
    const bool whole_head = part == "partial_rotary_factor" && value.is_number() && value.as_double() == 1;
    if (value.is_null() || whole_head || std::find(used.begin(), used.end(), part) != used.end()) continue;
    config.need(key, false, fmt::format("no {} in it, which rope_type \"{}\" lacks", files::printable(part, 80), name));
  }
  return read;
}

/// Reads theta and the scaling. Before version 5 of the library they are rope_theta and rope_scaling. Since then, both
/// are in rope_parameters. A file may have both forms of the same values.
void read_rope(const ConfigJson& config, double default_theta, ModelOptions& options) {
  std::optional<Rope> read;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const Json* object = config.find(key);
    if (object == nullptr || (object->is_object() && object->as_object().empty())) continue;
    const Rope more = read_rope_object(config, key, *object);
    if (read && (more.scaling != read->scaling || (more.theta && read->theta && more.theta != read->theta)))
      config.fail(key, fmt::format("= {} contradicts rope_parameters = {}", config.shown(key),
                                   config.shown("rope_parameters")));
    if (!read) read = more;
    if (!read->theta) read->theta = more.theta;
  }
  const double theta = config.real("rope_theta", read && read->theta ? *read->theta : default_theta);
  config.need("rope_theta", theta > 0 && theta < 1e12, "a number above 0");
  if (read && read->theta && *read->theta != theta)
    config.fail("rope_theta", fmt::format("= {} contradicts {} in rope_parameters", theta, *read->theta));
  options.rope_theta = static_cast<float>(theta);
  if (read) options.rope_scaling = read->scaling;
  // The library prefers this key of other families to the number in rope_parameters.
  const int64_t original = config.whole("original_max_position_embeddings", options.rope_scaling.original_context);
  config.need("original_max_position_embeddings",
              options.rope_scaling.factor == 0 || original == options.rope_scaling.original_context,
              fmt::format("{} as in rope_parameters", options.rope_scaling.original_context));
}

/// Reads the layers with a window as the classes of the library have them, and adds a note where they differ from the
/// file.
void read_windows(const ConfigJson& config, const LlamaDialect& dialect, HuggingFaceModel& model) {
  constexpr const char *kFull = "full_attention", *kSliding = "sliding_attention";
  ModelOptions& o = model.options;
  const bool qwen = dialect.windows == Windows::from_max_window_layers || dialect.windows == Windows::all_if_used;
  // The other families have no such keys, and their libraries ignore them, so the keys must agree with the layers.
  const bool uses = config.boolean("use_sliding_window", dialect.windows == Windows::all);
  int64_t first = 0;
  if (qwen || dialect.windows == Windows::none)
    first =
        config.whole("max_window_layers", dialect.windows == Windows::all_if_used ? 0 : 28, ConfigJson::kMaxSize, 0);
  int64_t window = 0;  // there is none
  if (config.find("sliding_window") != nullptr || (dialect.windows != Windows::none && !config.has("sliding_window")))
    window = config.whole("sliding_window", dialect.window);
  if (qwen && !uses) window = 0;
  if (dialect.windows == Windows::all_if_used &&
      window > 0)  // some versions of the library use this key, others do not
    config.need("max_window_layers", first == 0, "0, so that all layers have the window");
  const std::vector<std::string> types = config.texts("layer_types");
  for (const std::string& type : types)
    if (type != kFull && type != kSliding)
      config.fail("layer_types", fmt::format("has {}, need \"{}\" or \"{}\"", files::shown(type), kFull, kSliding));
  config.need("layer_types", types.empty() || std::ssize(types) == o.layers,
              fmt::format("{} items, one for each layer", o.layers));
  std::vector<int64_t> layers;
  for (int64_t l = 0; l < o.layers; ++l)
    if (types.empty() ? window > 0 && dialect.windows != Windows::none && l >= first
                      : types[static_cast<size_t>(l)] == kSliding)
      layers.push_back(l);
  if (has_experts(o.family))  // its classes have no such key
    config.need("layer_types", types.empty() || std::ssize(layers) == (window > 0 ? o.layers : 0),
                "the same type in all layers, as sliding_window has it");
  if (dialect.windows == Windows::none) {
    config.need("layer_types", layers.empty(), "full_attention in all layers; mistral has windows");
    config.need("sliding_window", window == 0 || window >= o.context, "null; mistral has windows");
    config.need("use_sliding_window", !uses, "false");
    return;
  }
  config.need("use_sliding_window", uses || layers.empty() || !qwen, "true for the sliding layers of layer_types");
  config.need("use_sliding_window", uses || qwen, "true, or sliding_window = null");
  config.need("sliding_window", window > 0 || layers.empty(), "a number of tokens for the sliding layers");
  if (window == 0 || window >= o.context) return;
  const bool all = std::ssize(layers) == o.layers;
  if (!all && std::string_view(dialect.name) == "Mistral")
    model.notes.push_back(fmt::format(
        "{} of {} layers have a window, by layer_types; MistralForCausalLM of transformers gives all layers "
        "one, MinistralForCausalLM these",
        layers.size(), o.layers));
  if (layers.empty()) return;
  o.window = window;
  if (!all) o.window_layers = std::move(layers);
}

HuggingFaceModel read_llama(ConfigJson& config, const LlamaDialect& dialect) {
  const int64_t width = config.whole("hidden_size", 4096), heads = config.whole("num_attention_heads", 32);
  const std::string activation = config.text("hidden_act", "silu");
  config.need("hidden_act", activation == "silu" || activation == "swish", "\"silu\"");
  const bool qwen2 = dialect.family == Family::qwen2, qwen3 = dialect.family == Family::qwen3;
  // Qwen2 always has biases of queries, keys and values. Its class has no such key, and the tensors show the biases.
  config.need("attention_bias", !config.boolean("attention_bias", false) || qwen2, "false");
  config.need("mlp_bias", !config.boolean("mlp_bias", false), "false");
  const int64_t layers = config.whole("num_hidden_layers", 32, kMaxLayers);
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
                  .context = config.whole("max_position_embeddings", dialect.context),
                  .vocab = config.whole("vocab_size", dialect.vocab),
                  .tie_embeddings = config.boolean("tie_word_embeddings", false),
                  .norm_eps = static_cast<float>(config.real("rms_norm_eps", dialect.norm_eps))},
      // The first two are keys of this program, because the library has no such dropout in these families.
      .dropout = {.embedding = config.rate("embd_pdrop", 0),
                  .residual = config.rate("resid_pdrop", 0),
                  .attention = config.rate("attention_dropout", 0)},
      .prefix = "model.",
      .table = "model.embed_tokens.weight"};
  read_windows(config, dialect, model);
  read_rope(config, dialect.rope_theta, model.options);
  if (dialect.experts.count > 0) model.options.experts = read_expert_keys(config, dialect.experts, model.options);
  return model;
}

/// Accepts only the classes whose tensors have the arithmetic of the families.
void check_architectures(const ConfigJson& config, const std::string& name) {
  const std::string causal = name + (name == "GPT2" ? "LMHeadModel" : "ForCausalLM");
  for (const std::string& architecture : config.texts("architectures"))
    config.need("architectures",
                architecture == causal || architecture == name + "Model" ||
                    (name == "Llama" && architecture == "LLaMAForCausalLM"),
                fmt::format("[\"{}\"]", causal));
}

/// A model's own code may compute anything. It is accepted only where it just reads texts.
void check_own_code(const ConfigJson& config) {
  const Json* code = config.find("auto_map");
  if (code == nullptr) return;
  config.need("auto_map", code->is_object(), "an object");
  for (const auto& [what, source] : code->as_object())
    config.need("auto_map", what == "AutoTokenizer", "no code of its own for the model");
}

/// Returns the first dialect of the family whose classes have the windows and the settings of the experts.
const LlamaDialect* dialect_of(const ModelOptions& options) {
  const bool mixed = options.window > 0 && !options.window_layers.empty();
  const bool own = needs_own_class(options.experts);
  const auto* found = std::find_if(kLlamaDialects.begin(), kLlamaDialects.end(), [&](const LlamaDialect& dialect) {
    return dialect.family == options.family && !(mixed && std::string_view(dialect.name) == "Mistral") &&
           dialect.experts.is_own == own;
  });
  return found == kLlamaDialects.end() ? nullptr : found;
}

/// Returns the keys that give layers of the family their windows.
std::string windows_of(const ModelOptions& o, const LlamaDialect& dialect) {
  if (dialect.windows == Windows::none) return "";
  const bool some = dialect.windows == Windows::from_max_window_layers,
             qwen = some || dialect.windows == Windows::all_if_used;
  std::string keys;
  if (qwen) keys += fmt::format("  \"use_sliding_window\": {},\n", o.window > 0);
  if (!qwen || o.window > 0)
    keys += fmt::format("  \"sliding_window\": {},\n", o.window > 0 ? fmt::format("{}", o.window) : "null");
  if (o.window > 0 && dialect.windows == Windows::all_if_used) keys += "  \"max_window_layers\": 0,\n";
  if (o.window == 0 || (o.window_layers.empty() && !some)) return keys;
  std::vector<std::string> types;
  for (int64_t l = 0; l < o.layers; ++l)
    types.push_back(o.window_of(l) > 0 ? "\"sliding_attention\"" : "\"full_attention\"");
  // Older versions select the layers by this key, if they are the last ones.
  if (some)
    keys += fmt::format("  \"max_window_layers\": {},\n", o.window_layers.empty() ? 0 : o.window_layers.front());
  return keys + fmt::format("  \"layer_types\": [{}],\n", fmt::join(types, ", "));
}

std::string id_or_null(int32_t id) { return id < 0 ? "null" : fmt::format("{}", id); }
/// Returns null, one id, or a list.
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
  ConfigJson config(json, where);
  const std::string type = config.text("model_type", "");
  const auto* dialect = std::find_if(kLlamaDialects.begin(), kLlamaDialects.end(),
                                     [&](const LlamaDialect& row) { return type == row.model_type; });
  if (type != "gpt2" && dialect == kLlamaDialects.end()) {
    std::string supported = "\"gpt2\"";
    for (const LlamaDialect& row : kLlamaDialects)
      supported += fmt::format("{}\"{}\"", &row == &kLlamaDialects.back() ? " or " : ", ", row.model_type);
    config.fail("model_type", fmt::format("= {} is not supported, need {}", files::shown(type), supported));
  }
  check_architectures(config, type == "gpt2" ? "GPT2" : dialect->name);
  check_own_code(config);
  HuggingFaceModel model = type == "gpt2" ? read_gpt2(config) : read_llama(config, *dialect);
  for (std::string& note : config.finish()) model.notes.push_back(std::move(note));
  ModelOptions& options = model.options;
  if (options.layers > tensors)
    throw CheckpointError(
        "[model] {} has {} layers, but the files beside it have only {}. Restore it, or copy the files that are "
        "missing.",
        where, options.layers, counted(tensors, "tensor"));
  const int64_t with_experts = options.experts.layers.empty() ? options.layers : std::ssize(options.experts.layers);
  if (const int64_t of_experts = 3 * with_experts * options.experts.count; of_experts > tensors)
    throw CheckpointError(
        "[model] {}: {} = {} in each of {} makes {} tensors, but the files beside it have only {}. Restore it, or copy "
        "the files that are missing.",
        where, config.has("num_local_experts") ? "num_local_experts" : "num_experts", options.experts.count,
        counted(with_experts, "layer"), of_experts, counted(tensors, "tensor"));
  config.need(type == "gpt2" ? "n_head" : "num_attention_heads",
              options.head_dim > 0 || options.width % options.heads == 0,
              fmt::format("a divisor of the width, {}", options.width));
  model.ids = read_text_ids(json, options.vocab);
  // These are the library's defaults, unless the vocabulary is a different one.
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
        "  \"tie_word_embeddings\": {},\n  \"dtype\": \"{}\"\n}}\n",
        o.vocab, o.context, o.width, o.layers, o.heads, o.ffn_width, o.norm_eps, with_point(o.dropout.residual),
        with_point(o.dropout.embedding), with_point(o.dropout.attention), begin, end, o.tie_embeddings, dtype);
  const LlamaDialect* dialect = dialect_of(o);
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
  more += windows_of(o, *dialect);
  if (dialect->experts.count > 0) more += expert_keys(o, dialect->experts.is_own);
  if (o.family == Family::llama || o.family == Family::qwen3 || o.family == Family::qwen3_moe)
    more += "  \"attention_bias\": false,\n";
  if (o.family == Family::llama) more += "  \"mlp_bias\": false,\n";
  if (o.dropout.embedding > 0) more += fmt::format("  \"embd_pdrop\": {},\n", with_point(o.dropout.embedding));
  if (o.dropout.residual > 0) more += fmt::format("  \"resid_pdrop\": {},\n", with_point(o.dropout.residual));
  more += fmt::format("  \"attention_dropout\": {},\n", with_point(o.dropout.attention));
  return fmt::format(
      "{{\n  \"model_type\": \"{}\",\n  \"architectures\": [\"{}ForCausalLM\"],\n  \"vocab_size\": {},\n"
      "  \"max_position_embeddings\": {},\n  \"hidden_size\": {},\n  \"intermediate_size\": {},\n"
      "  \"num_hidden_layers\": {},\n  \"num_attention_heads\": {},\n  \"num_key_value_heads\": {},\n"
      "  \"head_dim\": {},\n  \"hidden_act\": \"silu\",\n  \"rms_norm_eps\": {},\n  \"rope_theta\": {},\n"
      "  \"rope_parameters\": {{{}, \"rope_theta\": {}}},\n{}  \"bos_token_id\": {},\n  \"eos_token_id\": {},\n"
      "  \"tie_word_embeddings\": {},\n  \"dtype\": \"{}\"\n}}\n",
      dialect->model_type, dialect->name, o.vocab, o.context, o.width, o.ffn_width, o.layers, o.heads, o.kv_heads,
      o.size_of_head(), o.norm_eps, o.rope_theta, scaling, o.rope_theta, more, begin, end, o.tie_embeddings, dtype);
}

}  // namespace slipstream::models

// SPDX-License-Identifier: Apache-2.0
// config.json files of transformers 4 and 5 (tests/golden/make_golden_configs.py): every key counts, is neutral or is
// refused.

#include "models/hugging_face.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "models/common/config_json.h"
#include "tests/paths.h"
#include "tests/test.hpp"

using namespace slipstream;
using models::HuggingFaceModel;

namespace {

constexpr int64_t kTensors = 2000;

HuggingFaceModel read(const Json& config) { return models::read_hugging_face_config(config, "config.json", kTensors); }

/// What a model is: all that config.json can say.
std::string written(const HuggingFaceModel& model) {
  models::ModelOptions options = model.options;
  options.dropout = model.dropout;
  return models::hugging_face_config(options, model.ids);
}

/// The refusal of a config, or "accepted".
std::string refusal(const Json& config) {
  try {
    read(config);
    return "accepted";
  } catch (const CheckpointError& error) {
    return error.what();
  }
}

struct Row {
  std::string name;
  Json config;
  std::vector<int64_t> windows;  // of the layers; 0: none
  std::vector<int64_t> experts;  // the layers that have them
};

std::vector<Row> rows() {
  std::vector<Row> all;
  for (const char* version : {"4", "5"}) {
    std::ifstream file(source_dir() + "/tests/golden/hf_configs_" + version + ".json", std::ios::binary);
    const Json golden = Json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
    for (const Json& row : golden.at("rows").as_array()) {
      Row each{.name = fmt::format("transformers {}, row {}, {}", version, all.size(),
                                   row.at("config").at("model_type").as_string()),
               .config = row.at("config"),
               .windows = {},
               .experts = {}};
      for (const Json& window : row.at("windows").as_array()) each.windows.push_back(window.as_int());
      if (const Json* experts = row.find("experts"))
        for (const Json& layer : experts->as_array()) each.experts.push_back(layer.as_int());
      all.push_back(std::move(each));
    }
  }
  REQUIRE(all.size() == 42);
  return all;
}

bool is_neutral(const std::string& key) {
  for (const models::NeutralKeys& row : models::neutral_keys())
    if (std::find(row.keys.begin(), row.keys.end(), key) != row.keys.end()) return true;
  return key.starts_with('_');
}

/// Other values of the same kind as `value`.
std::vector<Json> others(const Json& value) {
  if (value.is_bool()) return {Json(!value.as_bool())};
  if (value.is_int()) return {Json(value.as_int() * 2 + 2)};
  if (value.is_number()) return {Json(value.as_double() * 2 + 0.25)};
  if (value.is_string()) return {Json("other"), Json(7)};
  if (value.is_array()) return {Json(Json::Array{Json("other")}), Json(7)};
  if (value.is_object()) return {Json(Json::Object{{"other", Json(7)}}), Json(7)};
  return {Json(true), Json(7), Json("other"), Json(Json::Object{{"other", Json(7)}})};
}

Json with(Json config, const std::string& key, Json value) {
  config[key] = std::move(value);
  return config;
}

Json without(const Json& config, const std::string& key) {
  Json::Object members;
  for (const Json::Member& member : config.as_object())
    if (member.first != key) members.push_back(member);
  return Json(std::move(members));
}

/// The config.json of this model_type, with an explicit window of 8 in some layers.
Json mixed(const std::string& type) {
  for (const Row& row : rows())
    if (row.config.at("model_type").as_string() == type && std::set(row.windows.begin(), row.windows.end()).size() == 2)
      return row.config;
  FAIL("no row of " << type);
  return {};
}

/// The config.json of this model_type by version 5 of the library, with a window and some values of experts other than
/// the defaults.
Json with_experts(const std::string& type) {
  Json found;
  for (const Row& row : rows())
    if (row.config.at("model_type").as_string() == type) found = row.config;
  REQUIRE(found.at("num_local_experts").as_int() == 6);
  return found;
}

/// A value that is refused, and parts of the sentence.
struct Refusal {
  const Json& base;
  const char *key, *value;
  std::vector<std::string> parts;
};

void check_refusals(const std::vector<Refusal>& rows) {
  for (const Refusal& row : rows) {
    INFO(row.key << " = " << row.value);
    REQUIRE(refusal(row.base) == "accepted");
    const std::string text = refusal(with(row.base, row.key, Json::parse(row.value)));
    for (const std::string& part : row.parts) CHECK_THAT(text, Catch::Contains(part));
  }
}

}  // namespace

TEST_CASE("config.json: what transformers saves is read, with the windows of its models", "[hugging_face]") {
  for (const Row& row : rows()) {
    INFO(row.name);
    const HuggingFaceModel model = read(row.config);
    const int64_t context = model.options.context;
    for (size_t layer = 0; layer < row.windows.size(); ++layer)
      CHECK(model.options.window_of(static_cast<int64_t>(layer)) ==
            (row.windows[layer] < context ? row.windows[layer] : 0));
    CHECK((model.options.experts.count > 0) == !row.experts.empty());
    for (int64_t layer = 0; layer < model.options.layers; ++layer)
      CHECK(model.options.experts.in_layer(layer) == std::binary_search(row.experts.begin(), row.experts.end(), layer));
    CHECK(model.notes.empty());
    // What this program writes gives the same model.
    const HuggingFaceModel again = read(Json::parse(written(model)));
    CHECK(written(again) == written(model));
    CHECK(again.notes.empty());
  }
}

TEST_CASE("config.json: every key of transformers changes the model, is neutral, or is refused", "[hugging_face]") {
  // These are refused with the name of another size, which does not fit them.
  const std::set<std::string> sizes = {"n_embd", "hidden_size", "num_hidden_layers", "num_attention_heads"};
  size_t used = 0, neutral = 0, refused = 0;
  for (const Row& row : rows()) {
    const HuggingFaceModel model = read(row.config);
    const std::string before = written(model);
    for (const auto& [key, value] : row.config.as_object())
      for (const Json& other : others(value)) {
        INFO(row.name << ": " << key << " = " << other.dump());
        std::string after;
        try {
          after = written(read(with(row.config, key, other)));
        } catch (const CheckpointError& error) {
          ++refused;
          CHECK((std::string(error.what()).find(key) != std::string::npos || sizes.contains(key)));
          continue;
        }
        // If no layer has a window, its length and its first layer have no meaning.
        const bool no_window = (key == "sliding_window" || key == "max_window_layers" || key == "use_sliding_window") &&
                               model.options.window == 0;
        const bool explicit_layers = key == "max_window_layers" && row.config.find("layer_types") != nullptr;
        if (after == before) CHECK((is_neutral(key) || no_window || explicit_layers));
        ++(after == before ? neutral : used);
      }
  }
  CHECK(used > 300);
  CHECK(neutral > 500);
  CHECK(refused > 300);
}

TEST_CASE("config.json: values that ask for other arithmetic are refused by name", "[hugging_face]") {
  const Json gpt2 = rows()[0].config, llama = rows()[2].config, mistral = mixed("ministral"), qwen3 = mixed("qwen3");
  check_refusals({
      {llama, "attention_bias", "true", {"attention_bias = true", "need false"}},
      {llama, "mlp_bias", "true", {"mlp_bias = true", "need false"}},
      {llama, "hidden_act", "\"gelu\"", {"hidden_act = \"gelu\"", "need \"silu\""}},
      {llama, "partial_rotary_factor", "0.5", {"partial_rotary_factor = 0.5", "need 1"}},
      {llama, "sliding_window", "8", {"sliding_window = 8", "mistral has windows"}},
      {llama,
       "layer_types",
       R"(["sliding_attention", "full_attention", "full_attention", "full_attention",
       "full_attention"])",
       {"layer_types", "mistral has windows"}},
      {llama, "rope_scaling", R"({"rope_type": "linear", "factor": 2.0})", {"rope_scaling", "linear", "\"llama3\""}},
      {llama, "rope_scaling", R"({"type": "default", "rope_type": "llama3"})", {"rope_scaling", "one type"}},
      {llama, "rope_scaling", R"({"type": "default", "mrope_section": [2, 2]})", {"rope_scaling", "no mrope_section"}},
      {llama,
       "rope_parameters",
       R"({"rope_type": "default", "rope_theta": 7.0, "partial_rotary_factor": 0.5})",
       {"rope_parameters", "no partial_rotary_factor"}},
      {llama,
       "rope_parameters",
       R"({"full_attention": {"rope_theta": 7.0}})",
       {"rope_parameters", "no full_attention"}},
      {llama,
       "rope_parameters",
       R"({"rope_type": "default", "rope_theta": 7.0})",
       {"rope_theta = 10000 contradicts 7 in rope_parameters"}},
      {llama, "num_experts", "8", {"num_experts = 8 is an unknown key", "remove it from a copy"}},
      {llama, "logit_softcapping", "30.0", {"logit_softcapping = 30.0 is an unknown key"}},
      {llama, "use_rope", "false", {"use_rope = false is an unknown key"}},
      {llama, "per_layer_config", R"({"0": {"head_dim": 8}})", {"per_layer_config = ", "unknown key"}},
      {llama, "quantization_config", R"({"bits": 4})", {"quantization_config = {\"bits\": 4} is an unknown key"}},
      {llama, "auto_map", R"({"AutoModelForCausalLM": "m.Model"})", {"auto_map", "no code of its own"}},
      {llama, "architectures", R"(["LlamaForSequenceClassification"])", {"architectures", "[\"LlamaForCausalLM\"]"}},
      {llama, "is_causal", "false", {"is_causal = false", "need true"}},
      {llama, "attention_dropout", "1.0", {"attention_dropout = 1.0", "below 1"}},
      {gpt2, "scale_attn_by_inverse_layer_idx", "true", {"scale_attn_by_inverse_layer_idx = true", "need false"}},
      {gpt2, "add_cross_attention", "true", {"add_cross_attention = true", "need false"}},
      {gpt2, "activation_function", "\"gelu\"", {"activation_function = \"gelu\"", "gelu_new"}},
      {gpt2, "hidden_size", "32", {"hidden_size = 32 contradicts n_embd = 16"}},
      {gpt2, "rope_theta", "10000.0", {"rope_theta = 10000.0 is an unknown key"}},
      {mistral, "layer_types", R"(["full_attention"])", {"layer_types", "need 5 items, one for each layer"}},
      {mistral, "layer_types", R"(["chunked_attention"])", {"layer_types has \"chunked_attention\"", "sliding"}},
      {mistral, "sliding_window", "null", {"sliding_window = null", "for the sliding layers"}},
      {qwen3, "use_sliding_window", "false", {"use_sliding_window = false", "need true"}},
      {qwen3, "attention_bias", "true", {"attention_bias = true", "need false"}},
  });
}

TEST_CASE("config.json: experts that ask for other arithmetic are refused by name", "[hugging_face]") {
  const Json qwen3 = mixed("qwen3"), mixtral = with_experts("mixtral"), qwen3_moe = with_experts("qwen3_moe");
  check_refusals({
      {qwen3, "num_experts", "8", {"num_experts = 8 is an unknown key"}},
      {mixtral, "num_experts_per_tok", "7", {"num_experts_per_tok = 7", "need at most the 6 experts"}},
      {mixtral, "num_experts", "5", {"num_experts = 5 contradicts num_local_experts = 6"}},
      {mixtral, "num_local_experts", "0", {"num_local_experts = 0, need 1 to 65536"}},
      {mixtral, "router_jitter_noise", "0.1", {"router_jitter_noise = 0.1", "need 0"}},
      {mixtral, "router_aux_loss_coef", "-0.5", {"router_aux_loss_coef = -0.5", "need a number from 0 to 1"}},
      {mixtral, "norm_topk_prob", "true", {"norm_topk_prob = true is an unknown key"}},
      {mixtral,
       "layer_types",
       R"(["full_attention", "full_attention", "full_attention", "full_attention", "full_attention"])",
       {"layer_types", "need the same type in all layers"}},
      {mixtral, "architectures", R"(["MistralForCausalLM"])", {"architectures", "[\"MixtralForCausalLM\"]"}},
      {qwen3_moe, "num_experts", "5", {"num_local_experts = 6 contradicts num_experts = 5"}},
      {qwen3_moe, "decoder_sparse_step", "6", {"decoder_sparse_step = 6", "need experts in one layer at least"}},
      {qwen3_moe, "mlp_only_layers", "[1, 3]", {"mlp_only_layers = [1, 3]", "need experts in one layer at least"}},
      {qwen3_moe, "mlp_only_layers", "[1.5]", {"mlp_only_layers = [1.5]", "need a list of numbers of layers"}},
      {qwen3_moe, "max_window_layers", "3", {"max_window_layers = 3", "need 0, so that all layers have the window"}},
      {qwen3_moe, "qkv_bias", "true", {"qkv_bias = true", "need false"}},
      {qwen3_moe, "use_qk_norm", "false", {"use_qk_norm = false", "need true"}},
      {qwen3_moe, "shared_expert_intermediate_size", "20", {"shared_expert_intermediate_size = 20", "need 0"}},
      {qwen3_moe, "n_group", "2", {"n_group = 2 is an unknown key"}},
      {qwen3_moe, "attention_bias", "true", {"attention_bias = true", "need false"}},
  });
}

TEST_CASE("config.json: the same values in other words are the same model", "[hugging_face]") {
  const Json gpt2 = rows()[0].config, llama = rows()[1].config, qwen2 = rows()[6].config;
  const auto same = [](const Json& one, const Json& other) { CHECK(written(read(one)) == written(read(other))); };
  // GPT-2 has aliases of sizes.
  for (const auto& [key, alias] : {std::pair{"n_embd", "hidden_size"}, {"n_layer", "num_hidden_layers"}}) {
    same(gpt2, with(without(gpt2, key), alias, gpt2.at(key)));
    same(gpt2, with(gpt2, alias, gpt2.at(key)));
  }
  // RoPE has one form in version 4 of the library and another in version 5; a file may have one or both.
  const Row five = rows()[21 + 1];
  REQUIRE(five.config.at("model_type").as_string() == "llama");
  same(llama, five.config);
  same(llama, with(with(five.config, "rope_theta", 500.0), "rope_scaling", llama.at("rope_scaling")));
  // These are metadata, unset keys and settings of texts.
  for (const auto& [key, value] : {std::pair{"unsloth_version", "\"2026.1\""},
                                   {"vllm_version", "\"1\""},
                                   {"_attn_implementation_autoset", "true"},
                                   {"logit_softcapping", "null"},
                                   {"pruned_heads", "{}"},
                                   {"auto_map", "{\"AutoTokenizer\": [\"t.T\", null]}"},
                                   {"use_mrope", "false"},
                                   {"partial_rotary_factor", "1.0"}}) {
    INFO(key);
    same(qwen2, with(qwen2, key, Json::parse(value)));
  }
  const HuggingFaceModel noted = read(with(qwen2, "vllm_version", "1"));
  REQUIRE(noted.notes.size() == 1);
  CHECK(noted.notes[0] == "vllm_version = \"1\" is not used");
}

TEST_CASE("config.json: experts have the names of both versions of the library, and the loads their loss",
          "[hugging_face]") {
  for (const char* type : {"mixtral", "qwen3_moe"}) {
    INFO(type);
    const Json config = with_experts(type);
    const HuggingFaceModel model = read(config);
    CHECK(written(read(with(without(config, "num_local_experts"), "num_experts", 6))) == written(model));
    CHECK(model.options.experts.count == 6);
    CHECK(model.options.experts.top_k == 3);
    CHECK(model.options.experts.normalize);
    CHECK(model.options.experts.ffn_width == (std::string(type) == "mixtral" ? 24 : 20));
    CHECK(model.options.experts.balance == ExpertBalance::auxiliary);
    CHECK(model.options.experts.balance_rate == 0.25);
    CHECK(read(with(config, "output_router_logits", false)).options.experts.balance == ExpertBalance::none);
    CHECK(read(with(config, "output_router_logits", false)).options.experts.balance_rate == 0.25);
  }
  // Settings that change nothing.
  const Json qwen3_moe = with_experts("qwen3_moe");
  for (const auto& [key, value] :
       {std::pair{"qkv_bias", "false"}, {"use_qk_norm", "true"}, {"shared_expert_intermediate_size", "0"}})
    CHECK(written(read(with(qwen3_moe, key, Json::parse(value)))) == written(read(qwen3_moe)));
  CHECK(written(read(with(with(qwen3_moe, "use_sliding_window", false), "max_window_layers", 3))) ==
        written(read(with(qwen3_moe, "use_sliding_window", false))));
}

TEST_CASE("config.json: a small folder cannot ask for experts that it lacks", "[hugging_face]") {
  const Json config = with(with_experts("qwen3_moe"), "num_local_experts", 60000);
  CHECK(refusal(config) ==
        "[model] config.json: num_local_experts = 60000 in each of 1 layer makes 180000 tensors, but the files beside "
        "it have only 2000 tensors. Restore it, or copy the files that are missing.");
}

TEST_CASE("config.json: experts that no class of transformers has are of a type of their own", "[hugging_face]") {
  models::ModelOptions options = read(with_experts("qwen3_moe")).options;
  CHECK(Json::parse(models::hugging_face_config(options)).at("model_type").as_string() == "qwen3_moe");
  const ExpertOptions plain = options.experts;
  ExpertOptions large = plain;
  large.router = RouterKind::sigmoid;
  large.groups = 3;
  large.group_top_k = 2;
  large.shared = 1;
  large.scale = 2.5;
  for (const int changed : {0, 1, 2, 3, 4}) {
    options.experts = large;
    if (changed == 1) options.experts = plain, options.experts.router = RouterKind::sigmoid;
    if (changed == 2) options.experts = plain, options.experts.groups = 3, options.experts.group_top_k = 2;
    if (changed == 3) options.experts = plain, options.experts.shared = 1;
    if (changed == 4) options.experts = plain, options.experts.scale = 2.5;
    INFO(changed);
    const Json config = Json::parse(models::hugging_face_config(options));
    CHECK(config.at("model_type").as_string() == "slipstream_moe");
    CHECK(config.at("architectures") == Json::parse(R"(["SlipstreamMoeForCausalLM"])"));
    const HuggingFaceModel again = read(config);
    CHECK(again.options.family == Family::qwen3_moe);
    CHECK(again.options.experts == options.experts);
    CHECK_THAT(refusal(with(config, "scoring_func", "tanh")), Catch::Contains("need \"softmax\" or \"sigmoid\""));
    CHECK_THAT(refusal(with(config, "n_group", 4)),
               Catch::Contains("n_group = 4") && Catch::Contains("divisor of the 6"));
    CHECK_THAT(refusal(with(config, "topk_group", 4)), Catch::Contains("topk_group = 4"));
    CHECK_THAT(refusal(with(config, "routed_scaling_factor", 0)), Catch::Contains("need a number above 0"));
  }
}

TEST_CASE("config.json: layers of Mistral with and without a window are those of Ministral", "[hugging_face]") {
  Json config = mixed("ministral");
  const HuggingFaceModel right = read(config);
  config["model_type"] = "mistral";
  const HuggingFaceModel model = read(config);
  CHECK(written(model) == written(right));
  CHECK(Json::parse(written(model)).at("model_type").as_string() == "ministral");
  REQUIRE(model.notes.size() == 1);
  CHECK_THAT(model.notes[0], Catch::Contains("2 of 5 layers have a window") && Catch::Contains("MistralForCausalLM"));
  config["layer_types"] = Json(Json::Array(5, Json("full_attention")));
  CHECK(read(config).options.window == 0);
  REQUIRE(read(config).notes.size() == 1);
  CHECK_THAT(read(config).notes[0], Catch::Contains("0 of 5 layers"));
}

TEST_CASE("config.json: rates of dropout and ids around a text stay", "[hugging_face]") {
  const Json gpt2 = with(with(rows()[0].config, "resid_pdrop", 0.25), "bos_token_id", Json());
  const HuggingFaceModel model = read(gpt2);
  CHECK(model.dropout.residual == 0.25);
  CHECK(model.dropout.embedding == 0.1);
  CHECK(model.dropout.attention == 0.1);
  CHECK(read(with(rows()[2].config, "attention_dropout", 0.125)).dropout.attention == 0.125);
  const Json config = Json::parse(written(model));
  CHECK(config.at("resid_pdrop").as_double() == 0.25);
  CHECK(config.at("bos_token_id").is_null());
  CHECK(config.at("dtype").as_string() == "float32");
  CHECK(config.find("torch_dtype") == nullptr);
  // A run of this program may have dropout that the library's Llama lacks.
  models::ModelOptions options = read(rows()[2].config).options;
  options.dropout = {.embedding = 0.5, .residual = 0.25, .attention = 0.125};
  const HuggingFaceModel again = read(Json::parse(models::hugging_face_config(options)));
  CHECK(again.dropout.embedding == 0.5);
  CHECK(again.dropout.residual == 0.25);
  CHECK(again.dropout.attention == 0.125);
}

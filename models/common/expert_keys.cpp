// SPDX-License-Identifier: Apache-2.0
// Reads and writes the keys of config.json that describe experts.

#include "models/common/expert_keys.h"

#include <fmt/ranges.h>

#include "engine/base/check.h"

namespace slipstream::models {
namespace {

/// Returns the layers with experts, or none if all layers have them.
std::vector<int64_t> read_expert_layers(const ConfigJson& config, int64_t layers) {
  const int64_t step = config.whole("decoder_sparse_step", 1);
  std::vector<bool> dense(static_cast<size_t>(layers));
  for (int64_t l = 0; l < layers; ++l) dense[static_cast<size_t>(l)] = (l + 1) % step != 0;
  if (const Json* list = config.find("mlp_only_layers")) {
    config.need("mlp_only_layers", list->is_array(), "a list of numbers of layers");
    for (const Json& layer : list->as_array()) {
      config.need("mlp_only_layers", layer.is_int(), "a list of numbers of layers");
      if (layer.as_int() >= 0 && layer.as_int() < layers) dense[static_cast<size_t>(layer.as_int())] = true;
    }
  }
  std::vector<int64_t> with;
  for (int64_t l = 0; l < layers; ++l)
    if (!dense[static_cast<size_t>(l)]) with.push_back(l);
  config.need(step > layers ? "decoder_sparse_step" : "mlp_only_layers", !with.empty(),
              "experts in one layer at least; qwen3 has none");
  if (std::ssize(with) == layers) with.clear();
  return with;
}

/// Reads the keys of Qwen3-MoE.
void read_qwen3_experts(const ConfigJson& config, int64_t layers, ExpertOptions& e) {
  e.ffn_width = config.whole("moe_intermediate_size", 768);
  e.normalize = config.boolean("norm_topk_prob", false);
  e.layers = read_expert_layers(config, layers);
  // Some published files have these keys, which the library does not read.
  config.need("qkv_bias", !config.boolean("qkv_bias", false), "false");
  config.need("use_qk_norm", config.boolean("use_qk_norm", true), "true");
  config.need("shared_expert_intermediate_size",
              config.whole("shared_expert_intermediate_size", 0, ConfigJson::kMaxSize, 0) == 0, "0");
}

/// Reads the keys of this program's own models. Their names are those of DeepSeek-V3.
void read_own_experts(const ConfigJson& config, ExpertOptions& e) {
  const std::string score = config.text("scoring_func", name_of(e.router));
  config.need("scoring_func", score == "softmax" || score == "sigmoid", "\"softmax\" or \"sigmoid\"");
  e.router = score == "softmax" ? RouterKind::softmax : RouterKind::sigmoid;
  e.shared = config.whole("n_shared_experts", 0, ConfigJson::kMaxSize, 0);
  e.groups = config.whole("n_group", 1);
  config.need("n_group", e.count % e.groups == 0, fmt::format("a divisor of the {} experts", e.count));
  e.group_top_k = config.whole("topk_group", 1);
  config.need("topk_group", e.group_top_k <= e.groups && e.top_k <= e.group_top_k * (e.count / e.groups),
              fmt::format("at most {} groups, which have {} experts for a token", e.groups, e.top_k));
  e.scale = config.real("routed_scaling_factor", 1);
  config.need("routed_scaling_factor", e.scale > 0 && e.scale <= 1e6, "a number above 0");
}

}  // namespace

ExpertOptions read_expert_keys(ConfigJson& config, const ExpertDefaults& defaults, const ModelOptions& o) {
  constexpr int64_t kMostExperts = 65536;
  ExpertOptions e;
  const bool mixtral = o.family == Family::mixtral;
  // Version 5 of the library gives the number of experts two names, in both families.
  const char *count = mixtral ? "num_local_experts" : "num_experts",
             *alias = mixtral ? "num_experts" : "num_local_experts";
  config.alias(count, alias);
  e.count = config.whole(count, defaults.count, kMostExperts);
  e.top_k = config.whole("num_experts_per_tok", defaults.top_k);
  config.need("num_experts_per_tok", e.top_k <= e.count, fmt::format("at most the {} experts", e.count));
  if (config.boolean("output_router_logits", false)) e.balance = ExpertBalance::auxiliary;
  e.balance_rate = config.real("router_aux_loss_coef", 0.001);
  config.need("router_aux_loss_coef", e.balance_rate >= 0 && e.balance_rate <= 1, "a number from 0 to 1");
  if (mixtral) {
    config.need("router_jitter_noise", config.real("router_jitter_noise", 0) == 0, "0");
    e.ffn_width = o.ffn_width;
    return e;
  }
  read_qwen3_experts(config, o.layers, e);
  if (defaults.is_own) read_own_experts(config, e);
  return e;
}

bool needs_own_class(const ExpertOptions& e) {
  return e.shared > 0 || e.router != RouterKind::softmax || e.groups > 1 || e.scale != 1;
}

std::string expert_keys(const ModelOptions& o, bool is_own) {
  const ExpertOptions& e = o.experts;
  const bool mixtral = o.family == Family::mixtral;
  std::string keys = fmt::format(
      "  \"{}\": {},\n  \"num_experts_per_tok\": {},\n  \"output_router_logits\": {},\n"
      "  \"router_aux_loss_coef\": {},\n",
      mixtral ? "num_local_experts" : "num_experts", e.count, e.top_k, e.balance == ExpertBalance::auxiliary,
      with_point(e.balance_rate));
  if (mixtral) return keys + "  \"router_jitter_noise\": 0.0,\n";
  std::vector<int64_t> dense;
  for (int64_t l = 0; l < o.layers; ++l)
    if (!e.in_layer(l)) dense.push_back(l);
  keys += fmt::format(
      "  \"moe_intermediate_size\": {},\n  \"norm_topk_prob\": {},\n  \"decoder_sparse_step\": 1,\n"
      "  \"mlp_only_layers\": [{}],\n",
      e.ffn_width, e.normalize, fmt::join(dense, ", "));
  if (!is_own) return keys;
  return keys + fmt::format(
                    "  \"scoring_func\": \"{}\",\n  \"n_shared_experts\": {},\n  \"n_group\": {},\n"
                    "  \"topk_group\": {},\n  \"routed_scaling_factor\": {},\n",
                    name_of(e.router), e.shared, e.groups, e.group_top_k, with_point(e.scale));
}

}  // namespace slipstream::models

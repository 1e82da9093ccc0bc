// SPDX-License-Identifier: Apache-2.0
// Checks the rules of the table [model.experts].

#include <string>

#include "engine/base/check.h"
#include "engine/base/plural.h"
#include "engine/config/fields.h"
#include "engine/config/validate.h"

namespace slipstream {
namespace {

/// The folders of Mixtral have no keys for these settings, so that other values would be lost in them.
void validate_mixtral(const Model& model) {
  const ExpertOptions& e = model.experts;
  const auto need = [&](std::string_view key, bool is_right, const auto& needed) {
    if (is_right) return;
    RunConfig config;
    config.model = model;
    throw ConfigError("{} = {}, but family mixtral needs {}. Use it, or family = \"qwen3_moe\".", key,
                      field_text(config, key), needed);
  };
  need("model.experts.shared", e.shared == 0, 0);
  need("model.experts.ffn_width", e.ffn_width == model.ffn_width, fmt::format("model.ffn_width = {}", model.ffn_width));
  need("model.experts.layers", e.layers.empty() || std::ssize(e.layers) == model.layers, "experts in all layers, []");
  need("model.experts.router", e.router == RouterKind::softmax, "\"softmax\"");
  need("model.experts.normalize", e.normalize, "true");
  need("model.experts.scale", e.scale == 1, 1);
}

/// Checks the numbers from which a token chooses its experts.
void validate_choice(const ExpertOptions& e) {
  if (e.top_k > e.count)
    throw ConfigError("model.experts.top_k = {} is above model.experts.count = {}. Use at most {}.", e.top_k, e.count,
                      e.count);
  if (e.groups > 1 && e.router == RouterKind::softmax)
    throw ConfigError(
        "model.experts.groups = {} has no effect with model.experts.router = \"softmax\". Use router = \"sigmoid\", or "
        "groups = 1.",
        e.groups);
  if (e.count % e.groups != 0)
    throw ConfigError("model.experts.groups = {} does not divide model.experts.count = {}. Use a divisor of {}.",
                      e.groups, e.count, e.count);
  if (e.group_top_k > e.groups)
    throw ConfigError("model.experts.group_top_k = {} is above model.experts.groups = {}. Use at most {}.",
                      e.group_top_k, e.groups, e.groups);
  const int64_t of_group = e.count / e.groups, chosen = e.group_top_k * of_group;
  if (e.top_k > chosen)
    throw ConfigError(
        "model.experts.top_k = {} is above the {} experts in model.experts.group_top_k = {} of groups of {}. Use at "
        "most {}, or group_top_k = {}.",
        e.top_k, chosen, e.group_top_k, of_group, chosen, (e.top_k + of_group - 1) / of_group);
}

}  // namespace

void validate_experts(const Model& model) {
  const ExpertOptions& e = model.experts;
  if (e.count == 0 && has_experts(model.family))
    throw ConfigError(
        "family = \"{}\" needs experts, and model.experts.count = 0. Set it, such as 8, or use family = \"{}\", which "
        "has none.",
        name_of(model.family), name_of(model.family == Family::mixtral ? Family::mistral : Family::qwen3));
  if (e.count == 0) return;
  if (!has_experts(model.family))
    throw ConfigError(
        "model.experts.count = {} needs family = \"mixtral\" or \"qwen3_moe\", and the family is \"{}\". Use one of "
        "them, or 0.",
        e.count, name_of(model.family));
  validate_choice(e);
  validate_layer_numbers("model.experts.layers", e.layers, model);
  if (model.family == Family::mixtral) validate_mixtral(model);
}

}  // namespace slipstream

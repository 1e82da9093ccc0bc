// SPDX-License-Identifier: Apache-2.0
// Checks the rules of the table [model] and of its division among ranks.

#include "engine/config/validate.h"

#include <string>

#include "engine/base/check.h"
#include "engine/base/plural.h"
#include "engine/base/units.h"
#include "engine/config/fields.h"

namespace slipstream {
namespace {

/// Returns the number of weights as a double, so that oversized products do not overflow.
double parameter_count(const Model& model) {
  const auto real = [](int64_t value) { return static_cast<double>(value); };
  const double attention = 2 * real(model.width) * real(model.head_dim) * real(model.heads + model.kv_heads);
  const ExpertOptions& e = model.experts;
  const int64_t routed = e.count == 0 ? 0 : e.layers.empty() ? model.layers : std::ssize(e.layers);
  const double dense = (is_rotary(model.family) ? 3 : 2) * real(model.width) * real(model.ffn_width);
  const double mixture = real(model.width) * (3 * real(e.count + e.shared) * real(e.ffn_width) + real(e.count));
  const double embedding = (model.tie_embeddings == Choice::yes ? 1 : 2) * real(model.vocab_size) * real(model.width);
  return real(model.layers) * attention + real(model.layers - routed) * dense + real(routed) * mixture + embedding;
}

/// Returns the fewest heads whose elements the kernels can hold.
std::string more_heads(const Model& model) {
  for (int64_t heads = ceil_div(model.width, kHeadDimMost); heads <= model.width; ++heads)
    if (model.width % heads == 0 && (is_rotary(model.family) ? model.width / heads % 2 == 0 : true))
      return fmt::format("at least {} heads", heads);
  return "another width";
}

void validate_window_layers(const Model& model) {
  const std::vector<int64_t>& layers = model.window_layers;
  if (layers.empty()) return;
  if (model.sliding_window == 0)
    throw ConfigError("model.window_layers lists {}, but model.sliding_window = 0 is no window. Set it, or use [].",
                      counted(std::ssize(layers), "layer"));
  validate_layer_numbers("model.window_layers", layers, model);
  if (has_experts(model.family) && std::ssize(layers) < model.layers)
    throw ConfigError(
        "model.window_layers lists {} of {}, but family {} has a window in all layers or in none. Use [], or family = "
        "\"mistral\", \"qwen2\" or \"qwen3\".",
        std::ssize(layers), counted(model.layers, "layer"), name_of(model.family));
}

}  // namespace

void validate_layer_numbers(std::string_view key, const std::vector<int64_t>& layers, const Model& model) {
  for (size_t i = 1; i < layers.size(); ++i)
    if (layers[i] <= layers[i - 1])
      throw ConfigError("{} has {} after {}. List each layer once, ascending.", key, layers[i], layers[i - 1]);
  if (!layers.empty() && layers.back() >= model.layers)
    throw ConfigError("{} has {}, but the {} of the model are 0 to {}. Use these.", key, layers.back(),
                      counted(model.layers, "layer"), model.layers - 1);
}

void validate_model(const Model& model) {
  if (model.head_dim == 0)
    throw ConfigError("model.width = {} is not a multiple of model.heads = {}. Use heads that divide the width.",
                      model.width, model.heads);
  if (model.head_dim > kHeadDimMost)
    throw ConfigError("model.width / model.heads = {} / {} makes heads of {} elements, more than {}. Use {}.",
                      model.width, model.heads, model.head_dim, kHeadDimMost, more_heads(model));
  if (model.heads % model.kv_heads != 0)
    throw ConfigError("model.heads = {} is not a multiple of model.kv_heads = {}. Use kv_heads that divide heads.",
                      model.heads, model.kv_heads);
  if (model.family == Family::gpt2 && model.kv_heads != model.heads)
    throw ConfigError(
        "model.kv_heads = {} differs from model.heads = {}, but family gpt2 needs one key and value head per head. "
        "Leave kv_heads out, or use family = \"llama\".",
        model.kv_heads, model.heads);
  if (is_rotary(model.family) && model.head_dim % 2 != 0)
    throw ConfigError("{} = {} is odd, but rotary positions need pairs of elements. Use an even width per head.",
                      model.head_dim * model.heads == model.width
                          ? fmt::format("model.width / model.heads = {} / {}", model.width, model.heads)
                          : "model.head_dim",
                      model.head_dim);
  if (!is_rotary(model.family) && model.head_dim * model.heads != model.width)
    throw ConfigError(
        "model.head_dim = {} is not model.width / model.heads = {} / {}, but family gpt2 needs that. Leave head_dim "
        "out, or use family = \"llama\".",
        model.head_dim, model.width, model.heads);
  if (model.rope_scaling != RopeScalingKind::none) {
    if (!is_rotary(model.family))
      throw ConfigError("model.rope_scaling = \"{}\" needs rotary positions, which family {} lacks. Use \"none\".",
                        name_of(model.rope_scaling), name_of(model.family));
    if (model.rope_low_freq_factor >= model.rope_high_freq_factor)
      throw ConfigError("model.rope_low_freq_factor = {} is not below model.rope_high_freq_factor = {}. Lower it.",
                        model.rope_low_freq_factor, model.rope_high_freq_factor);
  }
  if (model.sliding_window > 0 && (model.family == Family::gpt2 || model.family == Family::llama))
    throw ConfigError(
        "model.sliding_window = {} needs family = \"mistral\", \"qwen2\", \"qwen3\", \"mixtral\" or \"qwen3_moe\", and "
        "the family is \"{}\". Use 0.",
        model.sliding_window, name_of(model.family));
  validate_window_layers(model);
  if (const double count = parameter_count(model); count > 1e15)
    throw ConfigError(
        "[model] has about {:.1e} parameters, more than the limit of 1e15. Check layers, width, ffn_width{} and "
        "vocab_size.",
        count, model.experts.count > 0 ? ", experts.count, experts.ffn_width" : "");
}

void validate_tensor(const RunConfig& config) {
  const Model& model = config.model;
  const int64_t tensor = config.parallel.tensor;
  std::string problem;
  const auto fits = [&](int64_t ranks) {
    problem = model.heads % ranks != 0       ? fmt::format("does not divide model.heads = {}", model.heads)
              : model.ffn_width % ranks != 0 ? fmt::format("does not divide model.ffn_width = {}", model.ffn_width)
              : model.kv_heads % ranks != 0 && ranks % model.kv_heads != 0
                  ? fmt::format("and model.kv_heads = {}: neither divides the other", model.kv_heads)
                  : "";
    return problem.empty();
  };
  if (!fits(tensor)) {
    const std::string reason = problem;
    std::string possible = "1";
    for (int64_t ranks = 2; ranks <= 64; ++ranks) possible += fits(ranks) ? fmt::format(", {}", ranks) : "";
    throw ConfigError(
        "parallel.tensor = {} {}. Each rank computes whole heads and equal parts of the hidden units. Use one of {}.",
        tensor, reason, possible);
  }
  if (!config.parallel.sequence_parallel) return;
  const int64_t batch = config.train.micro_batch_size, tokens = config.train.sequence_length / config.parallel.context;
  if (batch * tokens % tensor != 0)
    throw ConfigError(
        "parallel.sequence_parallel needs the {} x {} = {} tokens of a micro-batch to be a multiple of parallel.tensor "
        "= {}. Change "
        "train.micro_batch_size or train.sequence_length.",
        batch, tokens, batch * tokens, tensor);
}

}  // namespace slipstream

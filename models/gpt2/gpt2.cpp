// SPDX-License-Identifier: Apache-2.0
// GPT-2's parameters: layer norms, biases, q, k and v in one, GELU, learned positions.

#include "models/gpt2/gpt2.h"

#include <cmath>

#include "engine/base/check.h"

namespace slipstream::models {
namespace {

constexpr Init kNormal{Init::Kind::normal, 0.02f}, kOnes{Init::Kind::ones, 0}, kZeros{};

Norm norm(SpecBuilder& b, const std::string& name, int layer) {
  const int64_t D = b.options().width;
  const uint32_t weight = b.parameter(name + ".weight", {D}, layer, kOnes);
  return {.weight = weight, .bias = b.parameter(name + ".bias", {D}, layer, kZeros)};
}

/// For a weight stored as Conv1D does, [in, out].
BlockParameters block(SpecBuilder& b, int l) {
  const ModelOptions& o = b.options();
  const int64_t D = o.width, A = b.attention_width(), F = b.ffn_width();
  const std::string p = fmt::format("transformer.h.{}.", l);
  const Init residual{Init::Kind::normal, 0.02f / std::sqrt(2.0f * static_cast<float>(o.layers))};
  const auto parameter = [&](NamedTensor tensor, Init init) {
    const bool decay = tensor.shape.size() >= 2;
    return b.parameter(ParameterSpec{.tensors = {std::move(tensor)}, .layer = l, .init = init, .decay = decay});
  };
  // With a split input every rank has the whole bias; with a split output, its part.
  const auto columns = [&](const std::string& name, int64_t out, int blocks, int64_t held) {
    const uint32_t weight = parameter(b.held({p + name + ".weight", {out, D}, 0, true}, 0, blocks), kNormal);
    return Linear{weight, parameter(b.held({p + name + ".bias", {out}}, 0, blocks), kZeros), D, held};
  };
  const auto rows = [&](const std::string& name, int64_t in, int64_t held) {
    const uint32_t weight = parameter(b.held({p + name + ".weight", {D, in}, 0, true}, 1), residual);
    return Linear{weight, b.parameter(p + name + ".bias", {D}, l, kZeros), held, D};
  };
  BlockParameters y;  // in the order of declaration
  y.norm_1 = norm(b, p + "ln_1", l);
  y.qkv = columns("attn.c_attn", 3 * D, 3, 3 * A);
  y.out = rows("attn.c_proj", D, A);
  y.norm_2 = norm(b, p + "ln_2", l);
  y.up = columns("mlp.c_fc", o.ffn_width, 1, F);
  y.down = rows("mlp.c_proj", o.ffn_width, F);
  return y;
}

}  // namespace

Architecture gpt2(const ModelOptions& o) {
  if (o.kv_heads != o.heads)
    throw ConfigError(
        "[model] gpt2 needs as many key-value heads as heads: got kv_heads {} and heads {}. Remove "
        "model.kv_heads, or set family = \"llama\".",
        o.kv_heads, o.heads);
  return {
      .description = fmt::format("gpt2, {} layers, {} heads, width {}, context {}, vocabulary {}, {} head", o.layers,
                                 o.heads, o.width, o.context, o.vocab, o.tie_embeddings ? "tied" : "untied"),
      .table = "transformer.wte.weight",
      .positions = "transformer.wpe.weight",
      .head = "lm_head.weight",
      .block = block,
      .final_norm = [](SpecBuilder& b) { return norm(b, "transformer.ln_f", static_cast<int>(b.options().layers)); }};
}

}  // namespace slipstream::models

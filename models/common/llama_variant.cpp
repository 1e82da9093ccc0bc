// SPDX-License-Identifier: Apache-2.0
// Parameters of Llama and its variants: RMS norms, grouped key-value heads, SwiGLU, rotary positions.

#include "models/common/llama_variant.h"

#include "engine/base/check.h"
#include "engine/base/plural.h"

namespace slipstream::models {
namespace {

constexpr Init kNormal{Init::Kind::normal, 0.02f}, kOnes{Init::Kind::ones, 0}, kZeros{};

BlockParameters block(SpecBuilder& b, int l, const LlamaVariant& variant) {
  const ModelOptions& o = b.options();
  const int64_t D = o.width, F = b.ffn_width(), A = b.attention_width(), hd = b.head_dim(), q = b.heads() * hd * D,
                kv = b.kv_heads() * hd * D;
  const std::string p = fmt::format("model.layers.{}.", l);
  const auto matrix = [&](std::vector<NamedTensor> tensors, int64_t in, int64_t out) {
    return Linear{b.parameter(ParameterSpec{.tensors = std::move(tensors), .layer = l, .init = kNormal, .decay = true}),
                  -1, in, out};
  };
  BlockParameters y;  // in the order of declaration
  y.norm_1.weight = b.parameter(p + "input_layernorm.weight", {D}, l, kOnes);
  if (b.shares_kv()) {
    y.qkv = matrix({b.held({p + "self_attn.q_proj.weight", {o.heads * hd, D}}, 0)}, D, A);
    const int64_t half = o.kv_heads * hd;
    y.kv = matrix({{p + "self_attn.k_proj.weight", {half, D}, 0}, {p + "self_attn.v_proj.weight", {half, D}, half * D}},
                  D, 2 * half);
    if (variant.qkv_bias) {
      const auto bias = [&](std::vector<NamedTensor> tensors) {
        return b.parameter(ParameterSpec{.tensors = std::move(tensors), .layer = l, .init = kZeros, .decay = false});
      };
      y.qkv.bias = bias({b.held({p + "self_attn.q_proj.bias", {o.heads * hd}}, 0)});
      y.kv.bias = bias({{p + "self_attn.k_proj.bias", {half}, 0}, {p + "self_attn.v_proj.bias", {half}, half}});
    }
  } else {
    y.qkv = matrix({b.held({p + "self_attn.q_proj.weight", {o.heads * hd, D}, 0}, 0),
                    b.held({p + "self_attn.k_proj.weight", {o.kv_heads * hd, D}, q}, 0),
                    b.held({p + "self_attn.v_proj.weight", {o.kv_heads * hd, D}, q + kv}, 0)},
                   D, b.qkv_width());
  }
  if (variant.qkv_bias && !b.shares_kv()) {
    std::vector<NamedTensor> biases = {b.held({p + "self_attn.q_proj.bias", {o.heads * hd}, 0}, 0),
                                       b.held({p + "self_attn.k_proj.bias", {o.kv_heads * hd}, q / D}, 0),
                                       b.held({p + "self_attn.v_proj.bias", {o.kv_heads * hd}, (q + kv) / D}, 0)};
    y.qkv.bias = b.parameter(ParameterSpec{.tensors = std::move(biases), .layer = l, .init = kZeros, .decay = false});
  }
  if (variant.head_norms) {
    y.head_norms.q_weight = b.parameter(p + "self_attn.q_norm.weight", {hd}, l, kOnes);
    y.head_norms.k_weight = b.parameter(p + "self_attn.k_norm.weight", {hd}, l, kOnes);
  }
  y.out = matrix({b.held({p + "self_attn.o_proj.weight", {D, o.heads * hd}}, 1)}, A, D);
  y.norm_2.weight = b.parameter(p + "post_attention_layernorm.weight", {D}, l, kOnes);
  y.up = matrix({b.held({p + "mlp.gate_proj.weight", {o.ffn_width, D}, 0}, 0),
                 b.held({p + "mlp.up_proj.weight", {o.ffn_width, D}, F * D}, 0)},
                D, 2 * F);
  y.down = matrix({b.held({p + "mlp.down_proj.weight", {D, o.ffn_width}}, 1)}, F, D);
  return y;
}

}  // namespace

Architecture llama_variant(const LlamaVariant& variant, const ModelOptions& o) {
  if (o.heads % o.kv_heads != 0) throw ConfigError("[model] kv_heads {} must divide heads {}.", o.kv_heads, o.heads);
  if (o.size_of_head() % 2 != 0)
    throw ConfigError("[model] rotary positions need an even head size: got {} of width {} and {} heads.",
                      o.size_of_head(), o.width, o.heads);
  if (o.window > 0 && !variant.window)
    throw ConfigError("[model] {} has no sliding window: got {} tokens. Remove it, or use mistral.", variant.name,
                      o.window);
  const auto with_window = std::count_if(o.window_layers.begin(), o.window_layers.end(),
                                         [&](int64_t layer) { return layer >= 0 && layer < o.layers; });
  std::string more;
  if (o.size_of_head() * o.heads != o.width) more += fmt::format(", heads of {}", o.size_of_head());
  if (o.rope_scaling.factor > 0) more += fmt::format(", RoPE scaled by {}", o.rope_scaling.factor);
  if (o.window > 0) more += fmt::format(", window {}", o.window);
  if (o.window > 0 && !o.window_layers.empty()) more += " in " + counted(with_window, "layer");
  return {.description = fmt::format(
              "{}, {} layers, {} heads ({} key-value), width {}, ffn {}, context {}, vocabulary {}, {} head{}",
              variant.name, o.layers, o.heads, o.kv_heads, o.width, o.ffn_width, o.context, o.vocab,
              o.tie_embeddings ? "tied" : "untied", more),
          .gated = true,
          .rotary = true,
          .table = "model.embed_tokens.weight",
          .head = "lm_head.weight",
          .block = [variant](SpecBuilder& b, int l) { return block(b, l, variant); },
          .final_norm =
              [](SpecBuilder& b) {
                return Norm{.weight = b.parameter("model.norm.weight", {b.options().width},
                                                  static_cast<int>(b.options().layers), kOnes)};
              }};
}

}  // namespace slipstream::models

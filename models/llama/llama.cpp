// SPDX-License-Identifier: Apache-2.0
// Llama's parameters: RMS norms, no biases, grouped key-value heads, SwiGLU, rotary positions.

#include "models/llama/llama.h"

#include "engine/base/check.h"
#include "models/common/decoder.h"

namespace slipstream::models {
namespace {

constexpr Init kNormal{Init::Kind::normal, 0.02f}, kOnes{Init::Kind::ones, 0};

BlockParameters block(SpecBuilder& b, int l) {
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
  y.qkv = matrix({b.held({p + "self_attn.q_proj.weight", {o.heads * hd, D}, 0}, 0),
                  b.held({p + "self_attn.k_proj.weight", {o.kv_heads * hd, D}, q}, 0),
                  b.held({p + "self_attn.v_proj.weight", {o.kv_heads * hd, D}, q + kv}, 0)},
                 D, b.qkv_width());
  y.out = matrix({b.held({p + "self_attn.o_proj.weight", {D, o.heads * hd}}, 1)}, A, D);
  y.norm_2.weight = b.parameter(p + "post_attention_layernorm.weight", {D}, l, kOnes);
  y.up = matrix({b.held({p + "mlp.gate_proj.weight", {o.ffn_width, D}, 0}, 0),
                 b.held({p + "mlp.up_proj.weight", {o.ffn_width, D}, F * D}, 0)},
                D, 2 * F);
  y.down = matrix({b.held({p + "mlp.down_proj.weight", {D, o.ffn_width}}, 1)}, F, D);
  return y;
}

}  // namespace

ModelSpec build_llama(const ModelOptions& o, Buffers& buffers) {
  if (o.heads % o.kv_heads != 0) throw ConfigError("[model] kv_heads {} must divide heads {}.", o.kv_heads, o.heads);
  if ((o.width / o.heads) % 2 != 0)
    throw ConfigError("[model] rotary positions need an even head size: width {} / heads {} is {}.", o.width, o.heads,
                      o.width / o.heads);
  return build_decoder(
      {.description = fmt::format(
           "llama, {} layers, {} heads ({} key-value), width {}, ffn {}, context {}, vocabulary {}, {} head", o.layers,
           o.heads, o.kv_heads, o.width, o.ffn_width, o.context, o.vocab, o.tie_embeddings ? "tied" : "untied"),
       .gated = true,
       .rotary = true,
       .table = "model.embed_tokens.weight",
       .head = "lm_head.weight",
       .block = block,
       .final_norm =
           [](SpecBuilder& b) {
             return Norm{.weight = b.parameter("model.norm.weight", {b.options().width},
                                               static_cast<int>(b.options().layers), kOnes)};
           }},
      o, buffers);
}

}  // namespace slipstream::models

// SPDX-License-Identifier: Apache-2.0
// GPT-2: layer norms, biases, q, k and v in one, GELU, learned positions. Llama and its relatives: RMS norms, grouped
// key-value heads, SwiGLU, rotary positions.

#include "models/families.h"

#include <cmath>

#include "engine/base/check.h"
#include "engine/base/plural.h"
#include "models/layers/attention.h"
#include "models/layers/mlp.h"

namespace slipstream::models {
namespace {

/// The differences of a family from Llama.
struct LlamaVariant {
  const char* name;         // in the description
  bool qkv_bias = false;    // biases of queries, keys and values
  bool head_norms = false;  // RMS norms of query and key heads, before they are rotated
  bool window = false;      // tokens may attend to the last ModelOptions::window tokens only
};

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
  AttentionKind mixer{.qkv = {{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, variant.qkv_bias},
                      .out = {{"self_attn.o_proj"}},
                      .rotary = true};
  if (variant.head_norms) mixer.head_norms = {"self_attn.q_norm", "self_attn.k_norm"};
  const BlockKind block{.norm_1 = {"input_layernorm"},
                        .mixer = attention(mixer),
                        .norm_2 = {"post_attention_layernorm"},
                        .mlp = swiglu_mlp({.up = {{"mlp.gate_proj", "mlp.up_proj"}}, .down = {{"mlp.down_proj"}}})};
  return {.description = fmt::format(
              "{}, {} layers, {} heads ({} key-value), width {}, ffn {}, context {}, vocabulary {}, {} head{}",
              variant.name, o.layers, o.heads, o.kv_heads, o.width, o.ffn_width, o.context, o.vocab,
              o.tie_embeddings ? "tied" : "untied", more),
          .table = "model.embed_tokens.weight",
          .head = "lm_head.weight",
          .prefix = "model.layers.",
          .blocks = std::vector(static_cast<size_t>(o.layers), block),
          .final_norm = {"model.norm"}};
}

}  // namespace

Architecture gpt2(const ModelOptions& o) {
  if (o.kv_heads != o.heads)
    throw ConfigError(
        "[model] gpt2 needs as many key-value heads as heads: got kv_heads {} and heads {}. Remove "
        "model.kv_heads, or set family = \"llama\".",
        o.kv_heads, o.heads);
  const Init residual{Init::Kind::normal, 0.02f / std::sqrt(2.0f * static_cast<float>(o.layers))};
  // Weights as Conv1D stores them.
  const auto weights = [](const char* name, Init init = Weights{}.init) { return Weights{{name}, true, true, init}; };
  const BlockKind block{.norm_1 = {"ln_1", true},
                        .mixer = attention({.qkv = weights("attn.c_attn"), .out = weights("attn.c_proj", residual)}),
                        .norm_2 = {"ln_2", true},
                        .mlp = gelu_mlp({.up = weights("mlp.c_fc"), .down = weights("mlp.c_proj", residual)})};
  return {
      .description = fmt::format("gpt2, {} layers, {} heads, width {}, context {}, vocabulary {}, {} head", o.layers,
                                 o.heads, o.width, o.context, o.vocab, o.tie_embeddings ? "tied" : "untied"),
      .table = "transformer.wte.weight",
      .positions = "transformer.wpe.weight",
      .head = "lm_head.weight",
      .prefix = "transformer.h.",
      .blocks = std::vector(static_cast<size_t>(o.layers), block),
      .final_norm = {"transformer.ln_f", true}};
}

Architecture llama(const ModelOptions& o) { return llama_variant({.name = "llama"}, o); }
Architecture mistral(const ModelOptions& o) { return llama_variant({.name = "mistral", .window = true}, o); }
Architecture qwen2(const ModelOptions& o) {
  return llama_variant({.name = "qwen2", .qkv_bias = true, .window = true}, o);
}
Architecture qwen3(const ModelOptions& o) {
  return llama_variant({.name = "qwen3", .head_norms = true, .window = true}, o);
}

}  // namespace slipstream::models

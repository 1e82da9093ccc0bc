// SPDX-License-Identifier: Apache-2.0
// The model families as tables of layers. GPT-2 has layer norms, biases, q, k and v in one, GELU, and learned
// positions. Llama and its relatives have RMS norms, grouped key-value heads, SwiGLU, and rotary positions.

#include <array>
#include <cmath>

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "engine/base/plural.h"
#include "engine/config/fields.h"
#include "engine/config/validate.h"
#include "kernels/attention/attention.h"
#include "models/common/config_json.h"
#include "models/hugging_face.h"
#include "models/layers/decoder.h"
#include "models/model.h"

namespace slipstream::models {
namespace {

/// The differences of a family from Llama.
struct LlamaVariant {
  const char* name;                      // in the description
  bool qkv_bias = false;                 // biases of queries, keys and values
  bool head_norms = false;               // RMS norms of query and key heads before rotation
  bool window = false;                   // tokens may attend to only the last ModelOptions::window tokens
  const ExpertsKind* experts = nullptr;  // in place of the MLP of the layers that ModelOptions::experts names
};

Architecture llama_variant(const LlamaVariant& variant, const ModelOptions& o) {
  if (o.heads % o.kv_heads != 0) throw ConfigError("[model] kv_heads {} must divide heads {}.", o.kv_heads, o.heads);
  if (o.size_of_head() % 2 != 0)
    throw ConfigError("[model] rotary positions need an even head size: got {} of width {} and {} heads.",
                      o.size_of_head(), o.width, o.heads);
  if (o.window > 0 && !variant.window)
    throw ConfigError("[model] {} has no sliding window: got {} tokens. Remove it, or use mistral.", variant.name,
                      o.window);
  SLIP_ASSERT(o.experts.count == 0 || variant.experts != nullptr);  // the run file guarantees it
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
  if (o.experts.count > 0)
    more += fmt::format(", {} experts of {}, top {}", o.experts.count, o.experts.ffn_width, o.experts.top_k);
  if (o.experts.shared > 0) more += fmt::format(", {} shared", o.experts.shared);
  const LayerKind mlp = swiglu_mlp({.up = {{"mlp.gate_proj", "mlp.up_proj"}}, .down = {{"mlp.down_proj"}}});
  std::vector<BlockKind> blocks;
  for (int64_t l = 0; l < o.layers; ++l) {
    mixer.window = o.window_of(l);
    blocks.push_back({{{"input_layernorm"}, attention(mixer)},
                      {{"post_attention_layernorm"}, o.experts.in_layer(l) ? experts(*variant.experts) : mlp}});
  }
  return {.description = fmt::format(
              "{}, {} layers, {} heads ({} key-value), width {}, ffn {}, context {}, vocabulary {}, {} head{}",
              variant.name, o.layers, o.heads, o.kv_heads, o.width, o.ffn_width, o.context, o.vocab,
              o.tie_embeddings ? "tied" : "untied", more),
          .table = "model.embed_tokens.weight",
          .head = "lm_head.weight",
          .prefix = "model.layers.",
          .blocks = std::move(blocks),
          .final_norm = {"model.norm"}};
}

Architecture gpt2(const ModelOptions& o) {
  if (o.kv_heads != o.heads)
    throw ConfigError(
        "[model] gpt2 needs as many key-value heads as heads: got kv_heads {} and heads {}. Remove "
        "model.kv_heads, or set family = \"llama\".",
        o.kv_heads, o.heads);
  const Init residual{Init::Kind::normal, 0.02f / std::sqrt(2.0f * static_cast<float>(o.layers))};
  // GPT-2 stores weights as Conv1D does.
  const auto weights = [](const char* name, Init init = Weights{}.init) { return Weights{{name}, true, true, init}; };
  const BlockKind block{
      {{"ln_1", true}, attention({.qkv = weights("attn.c_attn"), .out = weights("attn.c_proj", residual)})},
      {{"ln_2", true}, gelu_mlp({.up = weights("mlp.c_fc"), .down = weights("mlp.c_proj", residual)})}};
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

Architecture mixtral(const ModelOptions& o) {
  const ExpertsKind experts{"block_sparse_moe.gate", "block_sparse_moe.experts.", "w1", "w3", "w2"};
  return llama_variant({.name = "mixtral", .window = true, .experts = &experts}, o);
}
Architecture qwen3_moe(const ModelOptions& o) {
  const ExpertsKind experts{"mlp.gate", "mlp.experts.", "gate_proj", "up_proj", "down_proj", "mlp.shared_experts."};
  return llama_variant({.name = "qwen3_moe", .head_norms = true, .window = true, .experts = &experts}, o);
}

struct Row {
  Family family;
  Architecture (*describe)(const ModelOptions&);
  const char* models;  // published ones
  const char* adds;    // arithmetic besides the norms, positions and activations
};

static_assert(kHeadDimMost == kernels::kAttentionHeadDimMax);

constexpr std::array<Row, 7> kFamilies{
    {{Family::gpt2, gpt2, "GPT-2", "biases of all layers"},
     {Family::llama, llama, "Llama 2, 3, 3.1, 3.2", "RoPE scaling `llama3`"},
     {Family::mistral, mistral, "Mistral 7B, Mistral Nemo, Ministral 8B", "-"},
     {Family::qwen2, qwen2, "Qwen2, Qwen2.5", "biases of queries, keys and values"},
     {Family::qwen3, qwen3, "Qwen3 (dense)", "norms of query and key heads"},
     {Family::mixtral, mixtral, "Mixtral 8x7B, 8x22B", "experts in all layers"},
     {Family::qwen3_moe, qwen3_moe, "Qwen3-30B-A3B, Qwen3-235B-A22B", "norms of query and key heads, experts"}}};

}  // namespace

Architecture architecture_of(const ModelOptions& options) {
  if (options.head_dim == 0 && options.width % options.heads != 0)
    throw ConfigError("[model] heads {} must divide width {}.", options.heads, options.width);
  if (options.size_of_head() > kHeadDimMost)
    throw ConfigError("[model] a head has {} elements, more than {}. Use a model with smaller heads.",
                      options.size_of_head(), kHeadDimMost);
  if (options.tokens > options.context)
    throw ConfigError(
        "[model] train.sequence_length {} exceeds model.context {}. Lower train.sequence_length, or raise "
        "model.context.",
        options.tokens, options.context);
  // The run file guarantees these rules (engine/config/validate.h).
  SLIP_ASSERT(options.heads % options.tensor == 0 &&
              (options.kv_heads % options.tensor == 0 || options.tensor % options.kv_heads == 0) &&
              options.ffn_width % options.tensor == 0);
  SLIP_ASSERT(!options.sequence_parallel || options.batch * options.tokens % options.tensor == 0);
  if (options.table != nullptr) return options.table(options);
  for (const Row& row : kFamilies)
    if (row.family == options.family) return row.describe(options);
  throw InternalError("[model] the model family has no row in models/registry.cpp.");
}

/// Returns the part of the page with the keys of config.json by what they do.
static std::string config_keys_markdown() {
  std::string text =
      "\n## Keys of config.json\n\n"
      "Every key of a folder is used, neutral, or refused with its value. Rates of dropout (`embd_pdrop`, "
      "`resid_pdrop`,\n"
      "`attn_pdrop`, `attention_dropout`) are used by training (`model.init`) and stay in converted folders. Null and "
      "empty\nvalues, and names that begin with an underscore, are neutral; names that end in `_version` are noted. An "
      "unknown key is\nrefused, because any other program may have given it a meaning: if the model is the same "
      "without "
      "it, remove it from a\ncopy of the file.\n\n| Neutral keys, which | |\n|---|---|\n";
  for (const NeutralKeys& row : neutral_keys())
    text += fmt::format("| {} | `{}` |\n", row.reason, fmt::join(row.keys, "`, `"));
  text += "\n| Key | Only value |\n|---|---|\n";
  for (const FixedKey& row : fixed_keys()) text += fmt::format("| `{}` | `{}` |\n", row.key, row.value.dump());
  return text +
         "\nTensors without a parameter are refused. A head beside `tie_word_embeddings = true`, masks and rotary "
         "frequencies are\ncompared with the values of the model.\n";
}

std::string supported_models_markdown() {
  std::string page =
      "<!-- SPDX-License-Identifier: Apache-2.0 -->\n# Supported models\n\n"
      "Generated from `models/registry.cpp`; a test compares this page with the program. `model_type` is that of "
      "`config.json`.\n\n"
      "| `model.family` | `model_type` | Models | Positions | Norm | MLP | Grouped keys | Also |\n"
      "|---|---|---|---|---|---|---|---|\n";
  for (const Row& row : kFamilies) {
    const bool rotary = is_rotary(row.family);
    const ModelOptions tiny{.family = row.family,
                            .layers = 1,
                            .heads = 2,
                            .kv_heads = rotary ? 1 : 2,
                            .width = 8,
                            .ffn_width = 8,
                            .context = 8,
                            .vocab = 8,
                            .experts = {.count = has_experts(row.family) ? 2 : 0, .ffn_width = 8},
                            .tokens = 8};
    const Architecture architecture = row.describe(tiny);
    const Json config = Json::parse(hugging_face_config(tiny));
    page += fmt::format("| `{}` | `{}` | {} | {} | {} | {} | {} | {} |\n", name_of(row.family),
                        config.at("model_type").as_string(), row.models,
                        architecture.positions.empty() ? "rotary" : "learned",
                        architecture.final_norm.centred ? "LayerNorm" : "RMSNorm",
                        architecture.blocks.front().mlp.layer.form, rotary ? "yes" : "no", row.adds);
  }
  return page +
         "\nAll families have tied and untied heads, float32 and bfloat16, CPU and CUDA kernels, tensor, sequence, "
         "pipeline and\ncontext parallelism, ZeRO 1 to 3, recomputation, and folders in and out. Mistral, Qwen2 and "
         "Qwen3 have a sliding window\nin all layers or in some (`layer_types`, `max_window_layers`). Mistral with "
         "both "
         "kinds of layers is written as\n`ministral`, whose class in `transformers` has them. Mixtral and Qwen3-MoE "
         "have "
         "a window in all layers or in none.\nLayers with experts have no tensor parallelism yet. "
         "Refused: RoPE scaling other than `llama3`.\n"
         "\nMixtral has experts in all layers. Qwen3-MoE has them in the layers that `mlp_only_layers` and "
         "`decoder_sparse_step`\nleave (`model.experts.layers`). `output_router_logits = true` is "
         "`model.experts.balance = \"auxiliary\"`, and\n`router_aux_loss_coef` is its rate. The library adds up all "
         "layers and sequences of a batch before it multiplies the\nshares of the experts by their scores; this "
         "program "
         "does so in every layer and sequence. Qwen3-MoE with shared\nexperts, the router \"sigmoid\", groups or a "
         "scale has no class in `transformers`. Its folders have the `model_type`\n`slipstream_moe`, which only this "
         "program opens, and name these settings as DeepSeek-V3 does.\n" +
         config_keys_markdown();
}

ModelSpec build_model(const ModelOptions& options, Buffers& buffers) {
  return build_decoder(architecture_of(options), options, buffers);
}

}  // namespace slipstream::models

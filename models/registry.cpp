// SPDX-License-Identifier: Apache-2.0
// The table of model families.

#include <array>

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "engine/config/validate_model.h"
#include "kernels/attention/attention.h"
#include "models/common/config_json.h"
#include "models/families.h"
#include "models/hugging_face.h"
#include "models/model.h"

namespace slipstream::models {
namespace {

struct Row {
  Family family;
  Architecture (*describe)(const ModelOptions&);
  const char* models;  // published ones
  const char* adds;    // arithmetic beside the norms, positions and activations
};

static_assert(kHeadDimMost == kernels::kAttentionHeadDimMax);

constexpr std::array<Row, 5> kFamilies{{{Family::gpt2, gpt2, "GPT-2", "biases of all layers"},
                                        {Family::llama, llama, "Llama 2, 3, 3.1, 3.2", "RoPE scaling `llama3`"},
                                        {Family::mistral, mistral, "Mistral 7B, Mistral Nemo, Ministral 8B", "-"},
                                        {Family::qwen2, qwen2, "Qwen2, Qwen2.5", "biases of queries, keys and values"},
                                        {Family::qwen3, qwen3, "Qwen3 (dense)", "norms of query and key heads"}}};

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
  // The rules of the run file (engine/config/validate.h).
  SLIP_ASSERT(options.heads % options.tensor == 0 &&
              (options.kv_heads % options.tensor == 0 || options.tensor % options.kv_heads == 0) &&
              options.ffn_width % options.tensor == 0);
  SLIP_ASSERT(!options.sequence_parallel || options.batch * options.tokens % options.tensor == 0);
  if (options.table != nullptr) return options.table(options);
  for (const Row& row : kFamilies)
    if (row.family == options.family) return row.describe(options);
  throw InternalError("[model] the model family has no row in models/registry.cpp.");
}

/// The keys of config.json by what they do.
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
                            .tokens = 8};
    const Architecture architecture = row.describe(tiny);
    const Json config = Json::parse(hugging_face_config(tiny));
    page += fmt::format("| `{}` | `{}` | {} | {} | {} | {} | {} | {} |\n", name_of(row.family),
                        config.at("model_type").as_string(), row.models,
                        architecture.positions.empty() ? "rotary" : "learned",
                        architecture.final_norm.centred ? "LayerNorm" : "RMSNorm", architecture.blocks.front().mlp.name,
                        rotary ? "yes" : "no", row.adds);
  }
  return page +
         "\nAll families have tied and untied heads, float32 and bfloat16, CPU and CUDA kernels, tensor, sequence, "
         "pipeline and\ncontext parallelism, ZeRO 1 to 3, recomputation, and folders in and out. Mistral, Qwen2 and "
         "Qwen3 have a sliding window\nin all layers or in some (`layer_types`, `max_window_layers`). Mistral with "
         "both "
         "kinds of layers is written as\n`ministral`, whose class in `transformers` has them. Refused: RoPE scaling "
         "other than `llama3`, mixtures of experts.\n" +
         config_keys_markdown();
}

ModelSpec build_model(const ModelOptions& options, Buffers& buffers) {
  return build_decoder(architecture_of(options), options, buffers);
}

}  // namespace slipstream::models

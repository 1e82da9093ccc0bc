// SPDX-License-Identifier: Apache-2.0
// The table of model families.

#include <array>

#include "engine/base/check.h"
#include "models/gpt2/gpt2.h"
#include "models/llama/llama.h"
#include "models/model.h"

namespace slipstream::models {
namespace {

struct Row {
  Family family;
  ModelSpec (*build)(const ModelOptions&, Buffers&);
};

constexpr std::array<Row, 2> kFamilies{{{Family::gpt2, build_gpt2}, {Family::llama, build_llama}}};

}  // namespace

ModelSpec build_model(const ModelOptions& options, Buffers& buffers) {
  if (options.width % options.heads != 0)
    throw ConfigError("[model] heads {} must divide width {}.", options.heads, options.width);
  if (options.tokens > options.context)
    throw ConfigError(
        "[model] train.sequence_length {} exceeds model.context {}. Lower train.sequence_length, or raise "
        "model.context.",
        options.tokens, options.context);
  // The rules of the run file (engine/config/validate.h).
  SLIP_ASSERT(options.heads % options.tensor == 0 && options.kv_heads % options.tensor == 0 &&
              options.ffn_width % options.tensor == 0);
  SLIP_ASSERT(!options.sequence_parallel || options.batch * options.tokens % options.tensor == 0);
  for (const Row& row : kFamilies)
    if (row.family == options.family) return row.build(options, buffers);
  throw InternalError("[model] the model family has no row in models/registry.cpp.");
}

std::string hugging_face_config(const ModelOptions& o) {
  const char* dtype = o.dtype == DType::bf16 ? "bfloat16" : "float32";
  if (o.family == Family::gpt2)
    return fmt::format(
        "{{\n  \"model_type\": \"gpt2\",\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"vocab_size\": {},\n"
        "  \"n_positions\": {},\n  \"n_embd\": {},\n  \"n_layer\": {},\n  \"n_head\": {},\n  \"n_inner\": {},\n"
        "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": {},\n  \"resid_pdrop\": 0.0,\n"
        "  \"embd_pdrop\": 0.0,\n  \"attn_pdrop\": 0.0,\n  \"tie_word_embeddings\": {},\n  \"torch_dtype\": "
        "\"{}\"\n}}\n",
        o.vocab, o.context, o.width, o.layers, o.heads, o.ffn_width, o.norm_eps, o.tie_embeddings, dtype);
  return fmt::format(
      "{{\n  \"model_type\": \"llama\",\n  \"architectures\": [\"LlamaForCausalLM\"],\n  \"vocab_size\": {},\n"
      "  \"max_position_embeddings\": {},\n  \"hidden_size\": {},\n  \"intermediate_size\": {},\n"
      "  \"num_hidden_layers\": {},\n  \"num_attention_heads\": {},\n  \"num_key_value_heads\": {},\n  \"head_dim\": "
      "{},\n"
      "  \"hidden_act\": \"silu\",\n  \"rms_norm_eps\": {},\n  \"rope_theta\": {},\n"
      "  \"rope_parameters\": {{\"rope_type\": \"default\", \"rope_theta\": {}}},\n  \"attention_bias\": false,\n"
      "  \"mlp_bias\": false,\n  \"tie_word_embeddings\": {},\n  \"torch_dtype\": \"{}\"\n}}\n",
      o.vocab, o.context, o.width, o.ffn_width, o.layers, o.heads, o.kv_heads, o.width / o.heads, o.norm_eps,
      o.rope_theta, o.rope_theta, o.tie_embeddings, dtype);
}

}  // namespace slipstream::models

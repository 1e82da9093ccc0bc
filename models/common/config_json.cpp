// SPDX-License-Identifier: Apache-2.0
// Tables of the keys of config.json, and readers of single values.

#include "models/common/config_json.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "engine/base/files.h"

namespace slipstream::models {
namespace {

bool is_empty(const Json& value) {
  return value.is_null() || (value.is_array() && value.as_array().empty()) ||
         (value.is_object() && value.as_object().empty());
}

}  // namespace

std::span<const NeutralKeys> neutral_keys() {
  // These keys come from transformers 4 and 5: PretrainedConfig, the configurations of the families, and what tools add
  // to them.
  static const std::vector<NeutralKeys> all = {
      {"name the model or a program",
       {"name_or_path", "model_name", "transformers_version", "is_llama_config", "transformers.js_config",
        "unsloth_fixed", "unsloth_version"}},
      {"describe files; the tensors have their own types",
       {"dtype", "torch_dtype", "torchscript", "use_bfloat16", "tokenizer_class"}},
      {"choose outputs, caches or kernels of the same results",
       {"use_cache", "output_attentions", "output_hidden_states", "output_scores", "return_dict",
        "return_dict_in_generate", "keys_to_ignore_at_inference", "attn_implementation", "experts_implementation",
        "gradient_checkpointing", "chunk_size_feed_forward", "pretraining_tp", "tie_last_hidden_states"}},
      {"choose where the softmax rounds; here it is always float32", {"reorder_and_upcast_attn"}},
      {"concern new weights, or the loss of another library", {"initializer_range", "tf_legacy_loss"}},
      {"repeat a size that another key has, and no library reads it", {"max_sequence_length", "n_ctx"}},
      {"concern heads of other tasks, whose tensors are refused",
       {"classifier_dropout", "finetuning_task", "hidden_dropout", "id2label", "label2id", "num_labels",
        "predict_special_tokens", "problem_type", "summary_activation", "summary_first_dropout",
        "summary_proj_to_labels", "summary_type", "summary_use_proj", "task_specific_params"}},
      {"name tokens around a text (read from here) or text before it",
       {"bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "decoder_start_token_id", "mask_token_id",
        "prefix", "sep_token_id", "unk_token_id"}},
      {"concern the generation of text",
       {"assistant_confidence_threshold",
        "assistant_lookbehind",
        "bad_words_ids",
        "begin_suppress_tokens",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "encoder_repetition_penalty",
        "epsilon_cutoff",
        "eta_cutoff",
        "exponential_decay_length_penalty",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "length_penalty",
        "max_length",
        "max_new_tokens",
        "min_length",
        "no_repeat_ngram_size",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "remove_invalid_values",
        "repetition_penalty",
        "suppress_tokens",
        "target_lookbehind",
        "temperature",
        "top_k",
        "top_p",
        "typical_p"}},
      {"concern cross-attention, which is refused", {"is_decoder", "cross_attention_hidden_size"}},
  };
  return all;
}

std::span<const FixedKey> fixed_keys() {
  static const std::vector<FixedKey> all = {
      {"add_cross_attention", false}, {"is_causal", true},         {"is_encoder_decoder", false},
      {"partial_rotary_factor", 1},   {"rope_interleaved", false}, {"tie_encoder_decoder", false},
      {"use_mrope", false},
  };
  return all;
}

void ConfigJson::fail(std::string_view key, const std::string& problem) const {
  throw CheckpointError("[model] {}: {} {}. Give the folder of a supported model.", where_, key, problem);
}

std::string ConfigJson::shown(std::string_view key) const {
  const Json* value = json_.find(key);
  return value == nullptr ? "(absent)" : files::printable(value->dump(), 80);
}

void ConfigJson::alias(std::string_view key, std::string_view alias) {
  aliases_.emplace_back(key, alias);
  const Json *one = find(key), *other = json_.find(alias);
  if (one != nullptr && other != nullptr && !other->is_null() && *one != *other)
    fail(alias, fmt::format("= {} contradicts {} = {}", shown(alias), key, shown(key)));
}

const Json* ConfigJson::find(std::string_view key) const {
  read_.insert(key);
  const Json* value = json_.find(key);
  for (const auto& [of, alias] : aliases_)
    if (of == key) {
      read_.insert(alias);
      if (value == nullptr || value->is_null()) value = json_.find(alias);
    }
  return value == nullptr || value->is_null() ? nullptr : value;
}

int64_t ConfigJson::whole(std::string_view key, std::optional<int64_t> absent, int64_t most, int64_t least) const {
  const Json* value = find(key);
  if (value == nullptr && absent) return *absent;
  if (value == nullptr) fail(key, "is missing");
  if (!value->is_int()) fail(key, fmt::format("is {}, need an integer", value->type_name()));
  if (value->as_int() < least || value->as_int() > most)
    fail(key, fmt::format("= {}, need {} to {}", value->as_int(), least, most));
  return value->as_int();
}

double ConfigJson::real(std::string_view key, double absent) const {
  const Json* value = find(key);
  if (value == nullptr) return absent;
  if (!value->is_number()) fail(key, fmt::format("is {}, need a number", value->type_name()));
  return value->as_double();
}

double ConfigJson::rate(std::string_view key, double absent) const {
  const double value = real(key, absent);
  need(key, value >= 0 && value < 1, "a rate of dropout of at least 0 and below 1");
  return value;
}

bool ConfigJson::boolean(std::string_view key, bool absent) const {
  const Json* value = find(key);
  if (value == nullptr) return absent;
  if (!value->is_bool()) fail(key, fmt::format("is {}, need true or false", value->type_name()));
  return value->as_bool();
}

std::string ConfigJson::text(std::string_view key, std::string_view absent) const {
  const Json* value = find(key);
  if (value == nullptr) return std::string(absent);
  if (!value->is_string()) fail(key, fmt::format("is {}, need a string", value->type_name()));
  return value->as_string();
}

std::vector<std::string> ConfigJson::texts(std::string_view key) const {
  std::vector<std::string> all;
  const Json* value = find(key);
  if (value == nullptr) return all;
  need(key, value->is_array(), "a list of words");
  for (const Json& item : value->as_array()) {
    need(key, item.is_string(), "a list of words");
    all.push_back(item.as_string());
  }
  return all;
}

void ConfigJson::need(std::string_view key, bool is_right, std::string_view right) const {
  if (!is_right) fail(key, fmt::format("= {} is not supported, need {}", shown(key), right));
}

std::vector<std::string> ConfigJson::finish() const {
  for (const FixedKey& fixed : fixed_keys()) {
    const Json* value = find(fixed.key);
    const bool same = value == nullptr || *value == fixed.value ||
                      (value->is_number() && fixed.value.is_number() && value->as_double() == fixed.value.as_double());
    need(fixed.key, same, fixed.value.dump());
  }
  std::vector<std::string> notes;
  for (const auto& [key, value] : json_.as_object()) {
    if (read_.contains(key)) continue;
    const auto rows = neutral_keys();
    if (std::any_of(rows.begin(), rows.end(), [&](const NeutralKeys& row) {
          return std::find(row.keys.begin(), row.keys.end(), key) != row.keys.end();
        }))
      continue;
    if (is_empty(value) || key.starts_with('_')) continue;
    const std::string name = files::printable(key, 80);
    if (!key.ends_with("_version"))
      fail(name, fmt::format("= {} is an unknown key that may change the results; if the model is the same without it, "
                             "remove it from a copy of the file",
                             shown(key)));
    notes.push_back(fmt::format("{} = {} is not used", name, shown(key)));
  }
  return notes;
}

}  // namespace slipstream::models

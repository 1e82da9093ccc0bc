// SPDX-License-Identifier: Apache-2.0
// Translates the model of a folder of weights or of a checkpoint to keys of a run file.

#include "trainer/planner/options/initial_model.h"

#include <algorithm>
#include <map>

#include <fmt/ranges.h>

#include "engine/base/files.h"
#include "engine/checkpoint/store.h"
#include "engine/checkpoint/weights_folder.h"
#include "engine/config/defaults.h"
#include "engine/config/fields.h"
#include "engine/config/load.h"
#include "models/hugging_face.h"

namespace slipstream::planner {
namespace {

std::vector<std::string> keys_of_experts(const ExpertOptions& e) {
  std::vector<std::string> keys;
  const auto add = [&](const char* key, const auto& value) {
    keys.push_back(fmt::format("model.experts.{}={}", key, value));
  };
  add("count", e.count);
  add("top_k", e.top_k);
  add("shared", e.shared);
  add("ffn_width", e.ffn_width);
  add("layers", fmt::format("[{}]", fmt::join(e.layers, ", ")));
  add("router", name_of(e.router));
  add("groups", e.groups);
  if (e.groups > 1) add("group_top_k", e.group_top_k);
  add("normalize", e.normalize);
  add("scale", e.scale);
  add("balance", name_of(e.balance));
  if (e.balance != ExpertBalance::none) add("balance_rate", e.balance_rate);
  return keys;
}

std::vector<std::string> keys_of_folder(const std::string& path) {
  const std::string dir = checkpoint::find_weights(path);
  const std::string where = files::shown(dir + "/" + checkpoint::kConfigFile);
  const models::HuggingFaceModel model =
      models::read_hugging_face_config(checkpoint::read_config(dir), where, checkpoint::count_tensors(dir));
  const models::ModelOptions& o = model.options;
  std::vector<std::string> keys;
  const auto add = [&](const char* key, const auto& value) { keys.push_back(fmt::format("model.{}={}", key, value)); };
  add("family", name_of(o.family));
  add("layers", o.layers);
  add("heads", o.heads);
  if (o.kv_heads != o.heads) add("kv_heads", o.kv_heads);
  if (o.head_dim * o.heads != o.width) add("head_dim", o.head_dim);
  add("width", o.width);
  add("ffn_width", o.ffn_width);
  add("context", o.context);
  add("vocab_size", o.vocab);
  add("tie_embeddings", o.tie_embeddings);
  add("norm_eps", o.norm_eps);
  add("embd_pdrop", model.dropout.embedding);
  add("resid_pdrop", model.dropout.residual);
  add("attn_pdrop", model.dropout.attention);
  if (!is_rotary(o.family)) return keys;
  add("rope_theta", o.rope_theta);
  add("sliding_window", o.window);
  add("window_layers", fmt::format("[{}]", fmt::join(o.window_layers, ", ")));
  if (o.experts.count > 0)
    for (std::string& key : keys_of_experts(o.experts)) keys.push_back(std::move(key));
  if (o.rope_scaling.factor == 0) return keys;
  add("rope_scaling", name_of(RopeScalingKind::llama3));
  add("rope_scaling_factor", o.rope_scaling.factor);
  add("rope_low_freq_factor", o.rope_scaling.low_freq_factor);
  add("rope_high_freq_factor", o.rope_scaling.high_freq_factor);
  add("rope_original_context", o.rope_scaling.original_context);
  return keys;
}

/// Returns the keys in the newest manifest, or none without a checkpoint.
std::vector<std::string> keys_of_checkpoint(const std::string& dir) {
  std::vector<std::string> keys;
  for (const checkpoint::Found& found : checkpoint::find_checkpoints(dir)) {
    if (!found.manifest) continue;
    const std::map<std::string, std::string> saved(found.manifest->config.begin(), found.manifest->config.end());
    for (const Field<RunConfig>& field : run_fields())  // the manifest of another version may have more keys
      if (const auto key = saved.find(field.key); field.key.starts_with("model.") && key != saved.end())
        keys.push_back(fmt::format("{}={}", key->first, key->second));
    break;
  }
  return keys;
}

/// Returns the sequences of a step in the newest manifest, or 0 without a checkpoint.
int64_t global_batch_of_checkpoint(const std::string& dir) {
  for (const checkpoint::Found& found : checkpoint::find_checkpoints(dir))
    if (found.manifest) return found.manifest->global_batch_size;
  return 0;
}

}  // namespace

RunConfig load_run(const std::string& run_file, const std::vector<std::string>& sets, bool resumes) {
  RunConfig config = with_sets(load_written(run_file, sets, resumes), {});
  // With a default that depends on the ranks, the steps of other ranks would get other samples.
  const bool is_set = std::any_of(sets.begin(), sets.end(),
                                  [](const std::string& set) { return set.starts_with("train.global_batch_size="); });
  if (resumes && !is_set && config.train.global_batch_size == 0)
    config.train.global_batch_size = global_batch_of_checkpoint(resolve_defaults(config).checkpoint.dir);
  return config;
}

WrittenRun load_written(const std::string& run_file, const std::vector<std::string>& sets, bool resumes) {
  return load_written_run(run_file, sets, [&](const RunConfig& written) {
    std::vector<std::string> keys;
    if (resumes) keys = keys_of_checkpoint(resolve_defaults(written).checkpoint.dir);
    return keys.empty() ? keys_of_folder(written.model.init) : keys;
  });
}

}  // namespace slipstream::planner

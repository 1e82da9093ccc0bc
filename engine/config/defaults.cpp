// SPDX-License-Identifier: Apache-2.0
// Defaults that depend on other settings, and settings without effect.

#include "engine/config/defaults.h"

#include "engine/base/units.h"

namespace slipstream {

RunConfig resolve_defaults(RunConfig config) {
  Model& model = config.model;
  const bool rotary = is_rotary(model.family);
  if (model.kv_heads == 0) model.kv_heads = model.heads;
  if (model.head_dim == 0 && model.width % model.heads == 0) model.head_dim = model.width / model.heads;
  if (model.ffn_width == 0) model.ffn_width = rotary ? round_up(ceil_div(8 * model.width, 3), 256) : 4 * model.width;
  if (model.experts.count > 0 && model.experts.ffn_width == 0) model.experts.ffn_width = model.ffn_width;
  if (model.tie_embeddings == Choice::automatic) model.tie_embeddings = rotary ? Choice::no : Choice::yes;
  if (config.train.sequence_length == 0) config.train.sequence_length = model.context;
  if (updates_matrices(config.optimizer.name) && config.optimizer.adamw_learning_rate == 0)
    config.optimizer.adamw_learning_rate = config.optimizer.learning_rate;
  if (config.optimizer.decay_steps == 0) config.optimizer.decay_steps = config.train.steps;
  if (config.zero.gather_dtype == DTypeChoice::automatic)
    config.zero.gather_dtype = config.train.dtype == DType::bf16 ? DTypeChoice::bfloat16 : DTypeChoice::float32;
  if (config.comm.grad_dtype == DTypeChoice::automatic) {
    const bool rounds = config.train.dtype == DType::bf16 && config.comm.quantize == Quantize::none;
    config.comm.grad_dtype = rounds ? DTypeChoice::bfloat16 : DTypeChoice::float32;
  }
  if (const int chunks = chunks_of(config.pipeline.schedule);
      chunks > 1 && config.parallel.pipeline > 1 && config.pipeline.virtual_stages == 1)
    config.pipeline.virtual_stages = chunks;
  std::string& dir = config.output.dir;  // without trailing slashes: an older run is renamed to DIR.old-N
  while (dir.size() > 1 && dir.back() == '/') dir.pop_back();
  if (config.checkpoint.dir.empty()) config.checkpoint.dir = config.output.dir + "/checkpoints";
  return config;
}

RunConfig in_effect(RunConfig config) {
  if (config.model.rope_scaling == RopeScalingKind::none) {
    config.model.rope_scaling_factor = Model{}.rope_scaling_factor;
    config.model.rope_low_freq_factor = Model{}.rope_low_freq_factor;
    config.model.rope_high_freq_factor = Model{}.rope_high_freq_factor;
    config.model.rope_original_context = Model{}.rope_original_context;
  }
  if (ExpertOptions& experts = config.model.experts; experts.count == 0) {
    experts = ExpertOptions{};
  } else {
    if (experts.groups == 1) experts.group_top_k = ExpertOptions{}.group_top_k;
    if (experts.balance == ExpertBalance::none) experts.balance_rate = ExpertOptions{}.balance_rate;
  }
  if (!updates_matrices(config.optimizer.name)) {
    config.optimizer.adamw_learning_rate = Optimizer{}.adamw_learning_rate;
    config.optimizer.momentum = Optimizer{}.momentum;
    config.optimizer.muon_scaling = Optimizer{}.muon_scaling;
  }
  if (config.train.recompute == Recomputation::none) config.train.recompute_layers = Train{}.recompute_layers;
  if (config.parallel.tensor == 1) {
    config.parallel.sequence_parallel = Parallel{}.sequence_parallel;
    config.overlap.tensor_chunks = Overlap{}.tensor_chunks;
  }
  if (config.parallel.expert == 1) {
    config.parallel.expert_exchange = Parallel{}.expert_exchange;
    config.overlap.paired_passes = Overlap{}.paired_passes;
  }
  if (config.parallel.pipeline == 1) {
    config.pipeline = Pipeline{};
    config.overlap.p2p = Overlap{}.p2p;
    config.overlap.align_grad_reduce = Overlap{}.align_grad_reduce;
  }
  if (!config.zero.sharding().parameters) {
    config.zero.prefetch_depth = Zero{}.prefetch_depth;
    config.zero.reshard_after_forward = Zero{}.reshard_after_forward;
    config.zero.persistence_threshold_bytes = Zero{}.persistence_threshold_bytes;
  }
  if (!config.checkpoint.async) config.checkpoint.bandwidth_bytes_per_second = Checkpoint{}.bandwidth_bytes_per_second;
  return config;
}

}  // namespace slipstream

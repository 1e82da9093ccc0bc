// SPDX-License-Identifier: Apache-2.0
// Decides every setting that a run file leaves open.

#include "engine/config/resolve.h"

#include <utility>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "engine/config/validate.h"

namespace slipstream {

RunConfig resolve_defaults(RunConfig config) {
  Model& model = config.model;
  const bool llama = model.family == Family::llama;
  if (model.kv_heads == 0) model.kv_heads = model.heads;
  if (model.ffn_width == 0) model.ffn_width = llama ? round_up(ceil_div(8 * model.width, 3), 256) : 4 * model.width;
  if (model.tie_embeddings == Choice::automatic) model.tie_embeddings = llama ? Choice::no : Choice::yes;
  if (config.train.sequence_length == 0) config.train.sequence_length = model.context;
  if (updates_matrices(config.optimizer.name) && config.optimizer.adamw_learning_rate == 0)
    config.optimizer.adamw_learning_rate = config.optimizer.learning_rate;
  if (config.optimizer.decay_steps == 0) config.optimizer.decay_steps = config.train.steps;
  if (config.zero.gather_dtype == DTypeChoice::automatic)
    config.zero.gather_dtype = config.train.dtype == DType::bf16 ? DTypeChoice::bfloat16 : DTypeChoice::float32;
  std::string& dir = config.output.dir;  // without trailing slashes: an older run is renamed to DIR.old-N
  while (dir.size() > 1 && dir.back() == '/') dir.pop_back();
  if (config.checkpoint.dir.empty()) config.checkpoint.dir = config.output.dir + "/checkpoints";
  return config;
}

RunConfig in_effect(RunConfig config) {
  if (!updates_matrices(config.optimizer.name)) {
    config.optimizer.adamw_learning_rate = Optimizer{}.adamw_learning_rate;
    config.optimizer.momentum = Optimizer{}.momentum;
    config.optimizer.muon_scaling = Optimizer{}.muon_scaling;
  }
  if (config.parallel.tensor == 1) {
    config.parallel.sequence_parallel = Parallel{}.sequence_parallel;
    config.overlap.tensor_chunks = Overlap{}.tensor_chunks;
  }
  if (config.parallel.pipeline == 1) {
    config.pipeline = Pipeline{};
    config.overlap.p2p = Overlap{}.p2p;
    config.overlap.align_grad_reduce = Overlap{}.align_grad_reduce;
  }
  if (config.zero.stage < 3) {
    config.zero.prefetch_depth = Zero{}.prefetch_depth;
    config.zero.reshard_after_forward = Zero{}.reshard_after_forward;
    config.zero.persistence_threshold_bytes = Zero{}.persistence_threshold_bytes;
  }
  return config;
}

ResolvedConfig resolve(const RunConfig& written, const RunFacts& facts) {
  RunConfig config = resolve_defaults(written);
  const Layout layout = resolve_layout(config, facts.world);
  const Batch batch = resolve_batch(config, layout.data);
  config.parallel.data = layout.data;
  config.train.global_batch_size = batch.global_batch_size;
  if (facts.vocab > config.model.vocab_size && config.model.vocab_size > 0)
    throw ConfigError(
        "[model] vocab_size = {} is smaller than the tokenizer's {} ids. Set model.vocab_size = 0 to use the "
        "tokenizer's size.",
        config.model.vocab_size, facts.vocab);
  if (config.optimizer.learning_rate == 0 && config.optimizer.adamw_learning_rate > 0)
    throw ConfigError(
        "optimizer.adamw_learning_rate = {} follows the schedule of optimizer.learning_rate = 0, which never rises. "
        "Use "
        "a learning_rate above 0, or leave adamw_learning_rate out.",
        config.optimizer.adamw_learning_rate);
  if (config.model.vocab_size == 0) config.model.vocab_size = facts.vocab;
  if (layout.data * layout.context == 1) {  // nothing to shard or to align
    config.zero = Zero{};
    config.overlap.align_grad_reduce = false;
  }
  config.device.kind = facts.on_gpus ? DeviceChoice::cuda : DeviceChoice::cpu;
  if (config.comm.backend == Backend::automatic) config.comm.backend = facts.on_gpus ? Backend::nccl : Backend::mpi;
  if (config.comm.deterministic == Choice::automatic)
    config.comm.deterministic = facts.on_gpus ? Choice::no : Choice::yes;
  if (config.zero.stage == 0) config.zero.shard_size = 0;
  // With sharded updates, both shares of a tied table travel together.
  if (config.zero.stage > 0) config.overlap.split_tied_embedding = false;
  return {in_effect(resolve_defaults(std::move(config))), layout, batch, without_effect(resolve_defaults(written))};
}

}  // namespace slipstream

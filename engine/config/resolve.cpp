// SPDX-License-Identifier: Apache-2.0
// Decides every setting that a run file leaves open.

#include "engine/config/resolve.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/config/defaults.h"
#include "engine/config/validate.h"

namespace slipstream {

ResolvedConfig resolve(const RunConfig& written, const RunFacts& facts) {
  RunConfig config = resolve_defaults(written);
  MeshSizes layout = resolve_layout(config, facts.world);
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
  if (!config.zero.sharding().states) config.zero.shard_size = 0;
  if (layout.replicas() == 1) {  // nothing to shard or to align
    const int64_t shard_size = config.zero.shard_size;
    config.zero = Zero{};
    if (shard_size > 1) config.zero.shard_size = shard_size;  // the size does not divide one rank: the mesh refuses it
    config.overlap.align_grad_reduce = false;
  }
  layout.data_inner = static_cast<int>(config.zero.shard_size);
  config.device.kind = facts.on_gpus ? DeviceChoice::cuda : DeviceChoice::cpu;
  if (config.comm.backend == Backend::automatic) config.comm.backend = facts.on_gpus ? Backend::nccl : Backend::mpi;
  if (config.parallel.expert_exchange == ExpertExchange::automatic)
    config.parallel.expert_exchange = facts.on_gpus ? ExpertExchange::gather : ExpertExchange::exact;
  if (config.comm.deterministic == Choice::automatic)
    config.comm.deterministic = facts.on_gpus ? Choice::no : Choice::yes;
  // With sharded updates, both shares of a tied table travel together.
  if (config.zero.sharding().states) config.overlap.split_tied_embedding = false;
  std::vector<std::string> notes = without_effect(resolve_defaults(written));
  if (std::vector<int64_t>& traced = config.trace.steps; traced.size() == 2 && traced[1] > config.train.steps) {
    const std::vector<int64_t> asked =
        std::exchange(traced, {std::min(traced[0], config.train.steps), config.train.steps});
    notes.push_back(fmt::format("trace.steps = [{}, {}] is shortened to [{}, {}], because train.steps = {}", asked[0],
                                asked[1], traced[0], traced[1], config.train.steps));
  }
  return {in_effect(resolve_defaults(std::move(config))), layout, batch, std::move(notes)};
}

}  // namespace slipstream

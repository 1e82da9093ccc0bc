// SPDX-License-Identifier: Apache-2.0
// Counts rounds of micro-batches.

#include "planner/steady_state.h"

namespace slipstream::planner {

SteadyState steady_state(const ResolvedConfig& config) {
  const int64_t stages = config->parallel.pipeline, micro_batches = config.batch().micro_batches;
  // The first rounds of interleaved schedules differ. On many stages they weigh little, and planning them takes long.
  const int64_t first = stages * (stages == 1 ? 2 : stages <= 4 ? 3 : stages <= 8 ? 2 : 1);
  if (micro_batches <= first + stages) return {.planned = micro_batches, .round = stages, .rounds = 0};
  return {.planned = first,
          .round = stages,
          .rounds = static_cast<double>(micro_batches - first) / static_cast<double>(stages)};
}

ResolvedConfig with_micro_batches(const ResolvedConfig& config, int64_t micro_batches) {
  RunConfig shorter = *config;
  shorter.train.global_batch_size = shorter.train.micro_batch_size * config.layout().data * micro_batches;
  return resolve(shorter, config.facts());
}

}  // namespace slipstream::planner

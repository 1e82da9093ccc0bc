// SPDX-License-Identifier: Apache-2.0
// Counts rounds of micro-batches.

#include "trainer/planner/steady_state.h"

#include <algorithm>

namespace slipstream::planner {

SteadyState steady_state(const ResolvedConfig& config) {
  const int64_t stages = config->parallel.pipeline, micro_batches = config.batch().micro_batches;
  constexpr int64_t kDeep = 64, kFew = 32;
  const ScheduleKind schedule = config->pipeline.schedule;
  if (stages >= kDeep && (schedule == ScheduleKind::one_f_one_b || schedule == ScheduleKind::zb_h1)) {
    if (micro_batches <= 3 * kFew) return {.planned = micro_batches, .round = kFew, .rounds = 0};
    return {.planned = kFew,
            .round = kFew,
            .rounds = static_cast<double>(micro_batches - kFew) / static_cast<double>(kFew),
            .fills = true};
  }
  // The first rounds of interleaved schedules differ. On many stages they have little weight, and planning them takes
  // long. Two rounds fill a folded pipeline.
  const int64_t first = stages * (stages == 1 ? 2 : stages <= 4 ? 3 : stages <= 8 || chunks_of(schedule) > 1 ? 2 : 1);
  if (micro_batches <= first + stages) return {.planned = micro_batches, .round = stages, .rounds = 0};
  return {.planned = first,
          .round = stages,
          .rounds = static_cast<double>(micro_batches - first) / static_cast<double>(stages)};
}

StageMemory largest_of_run(const ResolvedConfig& run, const SteadyState& state, const FinishedJob& shorter,
                           const FinishedJob& longer) {
  ScheduleShape shape = longer.stages[0]->schedule.shape;
  shape.micro_batches = static_cast<int>(run.batch().micro_batches);
  const PipelineSchedule whole = make_schedule(run->pipeline.schedule, shape);
  StageMemory largest;
  for (size_t s = 0; s < shorter.stages.size(); ++s) {
    const Job &shorter_job = *shorter.stages[s], &longer_job = *longer.stages[s];
    const Buffers &few = shorter_job.buffers, &more = longer_job.buffers;
    // These are the micro-batches whose activations are alive at once. The schedules here have one chunk on each stage.
    const int now = shorter_job.chunks[0].slots, next = longer_job.chunks[0].slots,
              all = peak_in_flight(whole, static_cast<int>(s), 0);
    int64_t bytes = 0;
    for (int owner = 0; owner < kOwners; ++owner) {
      const auto kind = static_cast<Owner>(owner);
      if (!few.is_on_device(kind)) continue;
      const auto had = static_cast<double>(few.bytes(kind)), grown = static_cast<double>(more.bytes(kind)) - had;
      // Every micro-batch has its own tokens.
      const double times = kind == Owner::batch ? state.rounds
                           : next > now         ? static_cast<double>(all - now) / static_cast<double>(next - now)
                                                : 0;
      bytes += static_cast<int64_t>(had + times * grown);
    }
    if (bytes > largest.size_bytes) largest = {.stage = s, .size_bytes = bytes};
  }
  return largest;
}

ResolvedConfig with_micro_batches(const ResolvedConfig& config, int64_t micro_batches) {
  RunConfig shorter = *config;
  shorter.train.global_batch_size = shorter.train.micro_batch_size * config.layout().data * micro_batches;
  return resolve(shorter, config.facts());
}

}  // namespace slipstream::planner

// SPDX-License-Identifier: Apache-2.0
// Makes two short plans and extrapolates on the line through their steps.

#include "trainer/planner/forecast/forecast.h"

#include <algorithm>
#include <utility>

#include "comm/rehearse/rehearse.h"
#include "engine/base/check.h"
#include "engine/report/utilization.h"
#include "trainer/planner/forecast/extra_memory.h"
#include "trainer/planner/forecast/software_memory.h"
#include "trainer/planner/planner.h"

namespace slipstream::planner {
namespace {

struct Sample {
  double step_ms = 0, exposed_ms = 0, bubble_ms = 0;
  int64_t memory_bytes = 0;
  FinishedJob finished;
};

Sample rehearse_short(const JobRequest& request) {
  FinishedJob finished = build_job_with_update(request, {});
  const Job& job = *finished.job;
  const comm::RooflinePrice price = price_of(*request.config, request.machine, job.mesh);
  constexpr int kSteps = 3;
  const comm::Rehearsal played = comm::rehearse(job.mesh, job.channels, runs_of(finished.stages, kSteps), price,
                                                {.gate = comm::Gate::launch_order});
  if (!played.finished) throw PlanError("[plan] the forecast's plan ends in a deadlock: {}", played.deadlock);
  const comm::RankTimes& times = played.ranks.front();
  return {.step_ms = static_cast<double>(times.step_period_ns(1)) / 1e6,
          .exposed_ms = static_cast<double>(times.exposed_ns) / (1e6 * kSteps),
          .bubble_ms = static_cast<double>(times.bubble_ns) / (1e6 * kSteps),
          .memory_bytes = most_bytes(finished),
          .finished = std::move(finished)};
}

Forecast middle(const Drawn& drawn) {
  std::optional<ScheduleChoice>
      schedule;  // the schedule of both plans, so that the line passes through steps of one schedule
  const auto job_request = [&](int64_t micro_batches) {
    JobRequest asked{.config = with_micro_batches(drawn.config, micro_batches),
                     .machine = drawn.machine,
                     .nccl = drawn.nccl,
                     .proves = false};
    asked.machine.memory_bytes = 0;
    asked.schedule = schedule;
    return asked;
  };
  schedule = choose_schedule(job_request(drawn.config.batch().micro_batches));
  const SteadyState state = steady_state(drawn.config);
  const int64_t micro_batches = drawn.config.batch().micro_batches;
  const int64_t longest = state.rounds == 0 ? micro_batches : state.planned + state.round;
  const Sample last = rehearse_short(job_request(longest));
  Forecast result{.step_ms = last.step_ms,
                  .exposed_ms = last.exposed_ms,
                  .bubble_ms = last.bubble_ms,
                  .tokens = drawn.config->train.global_batch_size * drawn.config->train.sequence_length,
                  .micro_batches = micro_batches,
                  .rehearsed = longest,
                  .memory_bytes = last.memory_bytes};
  if (state.rounds == 0) return result;
  const Sample before = rehearse_short(job_request(state.planned));
  const double more = state.rounds - 1;
  result.step_ms += more * (last.step_ms - before.step_ms);
  result.exposed_ms += more * (last.exposed_ms - before.exposed_ms);
  if (state.fills) result.memory_bytes = largest_of_run(drawn.config, state, before.finished, last.finished).size_bytes;
  result.bubble_ms = std::max(0.0, result.bubble_ms + more * (last.bubble_ms - before.bubble_ms));
  return result;
}

}  // namespace

double interval_factor(const Software& software) {
  switch (software.base) {
    case SoftwareBase::megatron:
      return 1.12;
    case SoftwareBase::fsdp:
      return 1.21;
    case SoftwareBase::llmq:
      return 1.14;
    case SoftwareBase::slipstream:  // there are no published runs: the widest factor
      return 1.21;
  }
  return 1.21;
}

RunForecast run_forecast(const Planned& planned, double step_ms) {
  const RunConfig& config = *planned.config;
  const int ranks = planned.config.world();
  const double seconds = step_ms / 1e3;
  RunForecast run{.tokens_of_step = static_cast<double>(planned.global_batch * config.train.sequence_length),
                  .days = seconds * static_cast<double>(config.train.steps) / 86400,
                  .rank_name = planned.config.on_gpus() ? "GPU" : "rank"};
  run.rank_hours = run.days * 24 * ranks;
  run.tokens_per_s_of_rank = run.tokens_of_step / seconds / ranks;
  // A plan with a few of the micro-batches has their share of the operations.
  const double flops = model_flops(planned.finished.stages) * static_cast<double>(planned.micro_batches) /
                       static_cast<double>(planned.config.batch().micro_batches);
  if (const double peak = peak_flops_per_second(planned.machine, config.train.dtype); peak > 0)
    run.mfu = utilization(flops, step_ms, ranks, peak);
  if (planned.machine.attention_efficiency > 0) {
    const double factor = interval_factor(planned.machine.software);
    run.low_ms = step_ms / factor;
    run.high_ms = step_ms * factor;
  }
  return run;
}

Forecast forecast(const PlanRequest& request) {
  const Drawn drawn = draw(request);
  Forecast made = middle(drawn);
  const double factor = interval_factor(drawn.machine.software);
  made.low_ms = made.step_ms / factor;
  made.high_ms = made.step_ms * factor;
  made.software_bytes = sum_of(memory_of_software(drawn.config, drawn.machine.software));
  return made;
}

}  // namespace slipstream::planner

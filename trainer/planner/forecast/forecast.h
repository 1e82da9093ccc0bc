// SPDX-License-Identifier: Apache-2.0
#pragma once
// The step time of a run by a short rehearsal: few micro-batches are planned, the steady state gives the others.

#include <cstdint>

#include "trainer/planner/forecast/planned.h"

namespace slipstream::planner {

/// Eighty of a hundred published runs take between step / factor and step x factor, where `step` is the forecast. Pure.
/// By software, from forecasts without the row's source (docs/FORESIGHT.md).
double interval_factor(const Software& software);

struct Forecast {
  double step_ms = 0;
  double low_ms = 0, high_ms = 0;  // 80 % interval
  double exposed_ms = 0;           // waits that faster communication removes, on the first stage
  double bubble_ms = 0;            // on the first stage
  int64_t tokens = 0;              // of a step
  int64_t micro_batches = 0;       // of the run
  int64_t rehearsed = 0;           // most micro-batches that a plan of the forecast has
  int64_t memory_bytes = 0;        // of the largest stage, with all micro-batches in flight that it has
  int64_t software_bytes = 0;      // the same in the software that the request names (software_memory.h); 0: not known
};

/// The run whose rehearsed step takes `step_ms`.
struct RunForecast {
  double low_ms = 0, high_ms = 0;  // 80 % interval of the step; 0: no published runs with such a machine
  double tokens_of_step = 0;
  double tokens_per_s_of_rank = 0;
  double mfu = 0;                  // model flops utilization; 0: the machine file has no peak for the type
  double days = 0;                 // train.steps at this step, without evaluations and checkpoints
  double rank_hours = 0;           // of all ranks together
  const char* rank_name = "rank";  // "GPU" where each rank has one
};
/// Pure.
RunForecast run_forecast(const Planned& planned, double step_ms);

/// Reads files, blocks. Skips the proof, the fit of memory and the choice of the update's place. Throws: as
/// make_plan().
///
/// A step of m micro-batches on p stages takes T(m1) + (m - m1) (T(m1 + p) - T(m1)) / p, with m1 = p to 3 p: every
/// further round of micro-batches adds the same time.
Forecast forecast(const PlanRequest& request);

}  // namespace slipstream::planner

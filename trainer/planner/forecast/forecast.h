// SPDX-License-Identifier: Apache-2.0
#pragma once
// The step time of a run by a short rehearsal. Only a few micro-batches are planned, and the steady state gives the
// time of the others.

#include <cstdint>

#include "trainer/planner/forecast/planned.h"

namespace slipstream::planner {

/// Returns a factor such that eighty of a hundred published runs take between step / factor and step x factor, where
/// `step` is the forecast. It depends on the software, and comes from forecasts without the row's own source
/// (docs/FORESIGHT.md). Pure.
double interval_factor(const Software& software);

struct Forecast {
  double step_ms = 0;
  double low_ms = 0, high_ms = 0;  // 80 % interval
  double exposed_ms = 0;           // waits that faster communication would remove, on the first stage
  double bubble_ms = 0;            // on the first stage
  int64_t tokens = 0;              // the tokens of a step
  int64_t micro_batches = 0;       // the micro-batches of the run
  int64_t rehearsed = 0;           // the most micro-batches in a plan of the forecast
  int64_t memory_bytes = 0;        // the largest stage, with all micro-batches in flight that it has
  int64_t software_bytes = 0;      // the same in the software that the request names (software_memory.h); 0: not known
};

/// The run whose rehearsed step takes `step_ms`.
struct RunForecast {
  double low_ms = 0, high_ms = 0;  // 80 % interval of the step; 0: there are no published runs on such a machine
  double tokens_of_step = 0;
  double tokens_per_s_of_rank = 0;
  double mfu = 0;                  // model flops utilization; 0: the machine file has no peak for the type
  double days = 0;                 // train.steps steps, without evaluations and checkpoints
  double rank_hours = 0;           // summed over all ranks
  const char* rank_name = "rank";  // "GPU" if each rank has one
};
/// Pure.
RunForecast run_forecast(const Planned& planned, double step_ms);

/// Reads files. Blocks. Skips the proof, the check of memory and the choice of the update's place. Throws: as
/// make_plan().
///
/// A step of m micro-batches on p stages takes T(m1) + (m - m1) (T(m1 + p) - T(m1)) / p, with m1 = p to 3 p: every
/// further round of micro-batches adds the same time.
Forecast forecast(const PlanRequest& request);

}  // namespace slipstream::planner

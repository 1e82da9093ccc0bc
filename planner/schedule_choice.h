// SPDX-License-Identifier: Apache-2.0
#pragma once
// The choices that the rehearsal makes about a pipeline's schedule.

#include "planner/job_request.h"

namespace slipstream::planner {

/// The choices with the shortest rehearsed step, unless `request.schedule` has them:
///   more micro-batches in flight   1f1b and zb_h1 with overlap.p2p, if the memory suffices. They help where transfers
///                                  take long, and where stages differ
///   lags of weight gradients       zb_h1; the candidates do not depend on the links
///   reductions of whole chunks     on stages that end early, without ZeRO
/// So faster links and more memory never make a longer step. The published schedule wins over equally long steps. With
/// more than 4096 stages x layers, the schedule alone is played, without the gradients. Equal on all ranks with the
/// same machine. Pure.
ScheduleChoice choose_schedule(const JobRequest& request);

}  // namespace slipstream::planner

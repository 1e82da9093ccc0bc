// SPDX-License-Identifier: Apache-2.0
// Rehearses a pipeline with other numbers of micro-batches in flight and other lags of its weight gradients.

#include <algorithm>

#include "engine/base/units.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"
#include "trainer/planner/stage_jobs.h"
#include "trainer/planner/stage_times.h"
#include "trainer/planner/steady_state.h"

namespace slipstream::planner {
namespace {

int64_t bytes_of(const FinishedJob& job, size_t stage) { return job.stages[stage]->buffers.total_bytes(); }

/// Returns the lags of ZB-H1 with the shortest play() if a transfer takes `transfer_ns`. No stage needs more memory
/// than the largest stage of `published`, which has the published lags.
std::vector<int> lags_for(const JobRequest& asked, const FinishedJob& published, int64_t transfer_ns) {
  constexpr int kAttempts = 3;
  const ScheduleShape& shape = published.job->schedule.shape;
  const PlayTimes times = pass_times(published.stages, asked.spine_ns,
                                     price_of(*asked.config, asked.machine, published.job->mesh), transfer_ns);
  std::vector<int> most = most_lags(shape);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::vector<int> lags = best_lags(shape, times, most);
    if (lags.empty()) return {};
    JobRequest lagged = asked;
    lagged.schedule = {.more_in_flight = shape.hides_transfers, .lags = lags};
    const FinishedJob other = build_drafted_job(lagged);
    bool fits = true;
    for (size_t s = 0; s < other.stages.size(); ++s) {
      const int64_t before_bytes = bytes_of(published, s), after_bytes = bytes_of(other, s),
                    limit_bytes = most_bytes(published);
      if (after_bytes <= limit_bytes) continue;
      fits = false;
      const int own = static_cast<int>(s);
      const int64_t bytes_of_one = ceil_div(after_bytes - before_bytes, std::max(1, lags[s] - own));
      most[s] = std::min(lags[s] - 1, own + static_cast<int>((limit_bytes - before_bytes) / bytes_of_one));
    }
    if (fits) return lags;
  }
  return {};
}

/// Returns the memory of a rank of the largest stage when `run` has all of its micro-batches, from a plan with fewer.
/// Activations grow at most with the micro-batches that the whole schedule keeps alive.
int64_t most_bytes_of_run(const JobRequest& run, const FinishedJob& shorter) {
  ScheduleShape shape = shorter.job->schedule.shape;
  shape.micro_batches = static_cast<int>(run.config.batch().micro_batches);
  const PipelineSchedule whole = make_schedule(run.config->pipeline.schedule, shape);
  int64_t most = 0;
  for (size_t s = 0; s < shorter.stages.size(); ++s) {
    const Job& job = *shorter.stages[s];
    const int64_t now = std::max(1, job.chunks[0].slots), all = peak_in_flight(whole, static_cast<int>(s), 0);
    const int64_t later = shape.micro_batches - job.buffers.micro_batches;
    most = std::max(most, job.buffers.total_bytes() +
                              job.buffers.bytes(Owner::activations) * std::max<int64_t>(0, all - now) / now +
                              job.buffers.bytes(Owner::batch) * later / job.buffers.micro_batches +
                              (run.extra_bytes ? run.extra_bytes(job) : 0));
  }
  return most;
}

int64_t rehearsed_ns(const JobRequest& asked, const FinishedJob& finished) {
  if (!asked.spine_ns) return step_period_ns(asked, finished, false);
  std::vector<std::vector<int64_t>> item_ns;
  for (const auto& stage : finished.stages) {
    item_ns.push_back(asked.spine_ns(*stage));
    item_ns.back().resize(stage->train().size(), -1);
  }
  return static_cast<int64_t>(
      1e6 * rehearsed_step_ms(finished.stages, item_ns, price_of(*asked.config, asked.machine, finished.job->mesh)));
}

/// Returns lags for transfers that take several shares of a forward pass; with `real`, for these links.
std::vector<std::vector<int>> candidates(const JobRequest& asked, const FinishedJob& published, bool real) {
  std::vector<std::vector<int>> found{{}};
  if (asked.config->pipeline.schedule != ScheduleKind::zb_h1) return found;
  const PlayTimes times =
      pass_times(published.stages, asked.spine_ns, price_of(*asked.config, asked.machine, published.job->mesh), 0);
  const int64_t forward_ns = times.action_ns(0, {});
  std::vector<int64_t> transfers{0, forward_ns / 4, forward_ns};
  if (real) transfers = {published.transfer_ns};
  for (const int64_t transfer_ns : transfers)
    if (std::vector<int> lags = lags_for(asked, published, transfer_ns);
        std::find(found.begin(), found.end(), lags) == found.end())
      found.push_back(std::move(lags));
  return found;
}

}  // namespace

namespace {

bool chooses_passes(const RunConfig& run) {
  const ScheduleKind kind = run.pipeline.schedule;
  return kind == ScheduleKind::zb_h1 || (kind == ScheduleKind::one_f_one_b && run.overlap.p2p);
}

/// Returns true if some stage of the plan reduces a whole chunk at once.
bool reduces_at_once(const FinishedJob& finished) {
  return std::any_of(finished.stages.begin(), finished.stages.end(), [](const auto& job) {
    const std::vector<char>& at_once = job->options.reduced_at_once;
    return std::find(at_once.begin(), at_once.end(), 1) != at_once.end();
  });
}

}  // namespace

ScheduleChoice choose_schedule(const JobRequest& request) {
  if (request.schedule) return *request.schedule;
  const RunConfig& run = *request.config;
  const MeshSizes& layout = request.config.layout();
  const bool deep = is_deep(request), reduces = layout.replicas() > 1 && !run.zero.sharding().states && !deep &&
                                                run.overlap.grad_reduce == ReduceMode::bucketed;
  if (layout.pipeline == 1 || !run.pipeline.schedule_file.empty() || (!chooses_passes(run) && !reduces)) return {};
  JobRequest asked = request;
  asked.config = with_micro_batches(request.config, steady_state(request.config).planned);
  asked.proves = false;
  const bool two_copies = run.optimizer.double_buffer == Choice::yes;
  const auto build = [&](const ScheduleChoice& choice) {
    asked.schedule = choice;
    return build_job_with_update(asked, {two_copies, two_copies});
  };
  ScheduleChoice best;
  int64_t best_ns = -1;
  bool at_once = false;  // of the best choice
  const auto take_if_shorter = [&](const ScheduleChoice& choice, int64_t step_ns) {
    if (step_ns < 0 || (best_ns >= 0 && step_ns >= best_ns)) return false;
    best_ns = step_ns;
    best = choice;
    return true;
  };
  for (const bool more : {false, true}) {
    if (more && !(chooses_passes(run) && run.overlap.p2p)) break;
    asked.schedule = {.more_in_flight = more, .lags = {}};
    const FinishedJob published = build_drafted_job(asked);
    if (more && request.machine.memory_bytes > 0 &&
        most_bytes_of_run(request, published) > request.machine.memory_bytes)
      break;
    for (const std::vector<int>& lags : candidates(asked, published, deep)) {
      const ScheduleChoice choice{.more_in_flight = more, .lags = lags};
      asked.schedule = choice;
      if (deep) {
        const auto stages = lags.empty() ? published.stages : build_drafted_job(asked).stages;
        const comm::RooflinePrice price = price_of(*asked.config, asked.machine, published.job->mesh);
        take_if_shorter(choice, played_schedule(stages, price, published.transfer_ns).makespan_ns);
        continue;
      }
      const FinishedJob finished = build(choice);
      if (take_if_shorter(choice, rehearsed_ns(asked, finished))) at_once = reduces_at_once(finished);
    }
  }
  if (!at_once) return best;
  ScheduleChoice in_buckets = best;
  in_buckets.reduces_at_once = false;
  take_if_shorter(in_buckets, rehearsed_ns(asked, build(in_buckets)));
  return best;
}

}  // namespace slipstream::planner

// SPDX-License-Identifier: Apache-2.0
// The order of every kind of plan, and the proof of several runs in a row.

#include "planner/finish_plans.h"

#include "engine/base/check.h"
#include "engine/plan/build_job.h"

namespace slipstream::planner {

comm::Proof finish_plans(const std::vector<std::shared_ptr<Job>>& stages, const comm::Price& price, bool proves) {
  const Job& first = *stages[0];
  comm::Proof ordered;
  const bool saves = first.options.snapshots, keeps = first.keeping.slots > 0;
  // Plans that are only compared have an order for their steps and snapshots.
  std::vector<Plan Job::*> plans{&Job::train};
  if (proves) plans = {&Job::prime, &Job::train, &Job::evaluate};
  if (saves) plans.push_back(&Job::save);
  if (keeps) plans.push_back(&Job::keep);
  for (Plan Job::*plan : plans) {
    std::vector<comm::Stage> of_all;
    for (const auto& job : stages) of_all.push_back({&((*job).*plan), &job->buffers});
    ordered.include(
        comm::finish(of_all, first.mesh, first.channels, price, proves ? comm::Checks::orders : comm::Checks::none));
  }
  if (first.options.double_buffer)
    for (const auto& job : stages) swap_buffers(*job);
  if (!proves) return ordered;
  std::vector<comm::StageRuns> rows;
  for (const auto& job : stages) {
    // Three steps and three evaluations in a row, and every seam between them. After an odd number of steps,
    // evaluations find the two copies of the weights exchanged.
    const bool swaps = job->options.double_buffer;
    const Plan *step = &job->train, *other = swaps ? &job->train_swapped : step,
               *evaluate = swaps ? &job->evaluate_swapped : &job->evaluate;
    std::vector<const Plan*> runs{&job->prime, step, evaluate, evaluate, evaluate, other, step, other};
    // Snapshots after an even and an odd number of steps, several in a row, and after evaluations. The end is a step
    // without one.
    const auto add_snapshots = [&](Plan Job::*even, Plan Job::*odd) {
      const Plan *copy = &((*job).*even), *copy_other = swaps ? &((*job).*odd) : copy;
      runs.insert(runs.end(), {copy, step, copy_other, other, &job->evaluate, copy, step, evaluate, copy_other, other,
                               step, other});
    };
    if (saves) add_snapshots(&Job::save, &Job::save_swapped);
    if (keeps) add_snapshots(&Job::keep, &Job::keep_swapped);
    if (saves && keeps) runs.insert(runs.end(), {&job->save, &job->keep, step, other});
    rows.push_back({std::move(runs), &job->buffers});
  }
  comm::Proof proof = comm::prove(rows, first.mesh, first.channels, price);
  proof.include(std::move(ordered));
  std::vector<const Job*> jobs;
  for (const auto& job : stages) jobs.push_back(job.get());
  proof.reductions = comm::find_incomplete(jobs);
  return proof;
}

void require_holds(const comm::Proof& proof) {
  if (proof.holds()) return;
  throw PlanError(
      "[plan] the plan failed its proof, and nothing was run: {}. Please report it with the run file. slipstream check "
      "prints the whole proof.",
      !proof.deadlock.empty()  ? "deadlock under " + proof.deadlock
      : !proof.hazards.empty() ? proof.hazards[0].sentence()
                               : proof.reductions.found.at(0).sentence());
}

}  // namespace slipstream::planner

// SPDX-License-Identifier: Apache-2.0
// Computes the order of every plan, and proves the sequences of the calendar.

#include "trainer/planner/planner.h"

#include <future>

#include "engine/base/check.h"
#include "engine/plan/build_job.h"

namespace slipstream::planner {

comm::Proof finish_plans(const std::vector<std::shared_ptr<Job>>& stages, const comm::Price& price, bool proves) {
  const Job& first = *stages[0];
  comm::Proof ordered;
  for (size_t row = 0; row < first.plans.size(); ++row) {
    // Plans that are only compared need an order for their steps and for what runs beside them.
    if (!proves && is_at_rest(first.plans[row].cadence.when)) continue;
    std::vector<comm::Stage> of_all;
    for (const auto& job : stages) of_all.push_back({&job->plans[row].plan, &job->buffers});
    ordered.include(
        comm::finish(of_all, first.mesh, first.channels, price, proves ? comm::Checks::orders : comm::Checks::none));
  }
  if (first.options.double_buffer)
    for (const auto& job : stages) swap_buffers(*job);
  if (!proves) return ordered;
  const std::vector<Calendar::Runs> sequences = first.calendar().sequences();
  std::vector<comm::StageRuns> rows;
  for (const auto& job : stages) {
    rows.push_back({.sequences = {}, .buffers = &job->buffers});
    for (const Calendar::Runs& runs : sequences) {
      std::vector<const Plan*>& plans = rows.back().sequences.emplace_back();
      for (size_t row : runs) plans.push_back(&job->plans[row].plan);
    }
  }
  // Both proofs only read the plans. The types follow the orders that finish() has computed, and one thread follows all
  // stages.
  std::vector<const Job*> jobs;
  for (const auto& job : stages) jobs.push_back(job.get());
  std::future<comm::ReductionReport> sums =
      std::async(std::launch::async, [&jobs] { return comm::find_incomplete(jobs); });
  comm::Proof proof = comm::prove(rows, first.mesh, first.channels, price);
  proof.include(std::move(ordered));
  proof.reductions = sums.get();
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

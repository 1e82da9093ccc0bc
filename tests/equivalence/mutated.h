// SPDX-License-Identifier: Apache-2.0
#pragma once
// The law that every wait of a plan is needed.

#include <algorithm>
#include <string>

#include "comm/rehearse/hazards.h"
#include "comm/rehearse/seams.h"
#include "engine/plan/job.h"
#include "tests/test.hpp"

namespace slipstream::equivalence {

/// Four runs in a row, an evaluation among them, have no hazard; with any wait changed they have one. Exceptions are
/// waits of and for items whose name begins with `barrier`, if it is not empty: they may concern time alone.
inline comm::Mutations check_waits_needed(const Job& job, comm::Mutation mutation = comm::Mutation::deleted,
                                          const std::string& barrier = "") {
  const std::vector<const Plan*> runs{&job.train(), &job.train(), &job.plan(PlanKind::evaluate), &job.train()};
  const auto seams = comm::link_all(runs, job.channels);
  REQUIRE(comm::find_hazards({runs, seams}, job.channels, &job.buffers).count == 0);
  const comm::Mutations mutations = comm::mutate_waits({runs, seams}, job.channels, &job.buffers, mutation);
  CAPTURE(job.stage(), mutations.redundant_names, mutations.missed_names);
  const auto in_time =
      std::count_if(mutations.missed_names.begin(), mutations.missed_names.end(), [&](const std::string& name) {
        return !barrier.empty() && (name.starts_with(barrier) || name.find("<- " + barrier) != name.npos);
      });
  CHECK(mutations.caught + in_time == mutations.waits);
  return mutations;
}

}  // namespace slipstream::equivalence

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Proves that the plans of a job add up every gradient, norm and loss once, over the right ranks, with the right
// factor, and that checkpoints get the state after a step.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/plan/job.h"

namespace slipstream::comm {

/// The first item of a plan that computes with an incomplete value, or at which a value would count twice.
struct Incomplete {
  std::string plan, item;
  int stage = 0;
  std::string tensor;  // or the buffer
  std::string axis;    // over which the value is incomplete: an axis of the mesh, or "micro-batches", "uses", ...
  std::string fault;   // "has a gradient that is not summed over replica"

  std::string sentence() const;
};

struct ReductionReport {
  std::vector<Incomplete> found;  // at most one for each plan
  int64_t works = 0, tasks = 0;   // the works and tasks that were typed
  int64_t parameters = 0;         // the parameters of all stages
  int64_t saved_arrays = 0;       // the arrays that a checkpoint of all stages has
};

/// Pure. Follows the types of all values (comm/rehearse/value_types.h) through every finished plan of a job. `stages`
/// has a job for every pipeline stage, whose rank stands for the others of its stage. A plan begins with the types that
/// the plan before it must leave, and must leave as much, so that every sequence of plans is proved.
ReductionReport find_incomplete(std::span<const Job* const> stages);

}  // namespace slipstream::comm

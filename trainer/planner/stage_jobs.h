// SPDX-License-Identifier: Apache-2.0
#pragma once
// Builds the jobs of all pipeline stages from one model.

#include <map>
#include <memory>
#include <vector>

#include "models/model.h"
#include "trainer/planner/options/job_request.h"

namespace slipstream::planner {

class StageJobs {
 public:
  /// `sizes` has the cuts between the parts of the model. Borrows `request`.
  StageJobs(const JobRequest& request, models::ModelOptions sizes, const PlanOptions& options);

  /// Returns the job of one pipeline stage. For the requesting rank's stage it is that rank's own job. Pure. Throws: as
  /// build_job().
  std::shared_ptr<Job> build(PlanOptions options, int stage) const;
  /// Returns the jobs of all stages. Uses several threads if that takes seconds. Pure. Throws: as build_job().
  std::vector<std::shared_ptr<Job>> build_all(const PlanOptions& options) const;

 private:
  /// The whole model for ranks with the same place among tensor ranks.
  struct Whole {
    ModelSpec outline;  // without pieces
    std::vector<Piece> pieces;
    Buffers buffers;
  };
  /// Returns the model for one stage. On deep pipelines it has no works of layers in distant stages, because copying
  /// and cutting them for every stage would take most of the time.
  ModelSpec model_of(const Whole& whole, const PlanOptions& options, int stage) const;

  const JobRequest& request_;
  models::ModelOptions sizes_;
  std::map<std::pair<int, int>, Whole>
      wholes_;  // by tensor index and expert rank; empty with one stage, which takes the model itself
};

/// Returns true if building the stages of a pipeline takes seconds. Pure.
bool is_deep(const JobRequest& request);

}  // namespace slipstream::planner

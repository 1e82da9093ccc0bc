// SPDX-License-Identifier: Apache-2.0
// Copies the model for every stage and cuts the copies.

#include "trainer/planner/stage_jobs.h"

#include <algorithm>
#include <utility>

#include "engine/base/parallel.h"
#include "engine/plan/build_job.h"

namespace slipstream::planner {
namespace {

/// Returns the rank whose job stands for a stage.
int rank_of(const JobRequest& request, const Mesh& mesh, int stage) {
  return stage == mesh.coordinates(request.rank).pipeline ? request.rank : mesh.rank({.pipeline = stage});
}

/// Names the parts of layers that a rank holds.
void set_shares(models::ModelOptions& options, const Mesh& mesh, int rank) {
  options.tensor_index = mesh.index_in_group(Axis::tensor, rank);
  options.expert_rank = mesh.index_in_group(Axis::expert, rank);
}

}  // namespace

bool is_deep(const JobRequest& request) {
  constexpr int64_t kDeep = 4096;
  return request.config->parallel.pipeline * request.config->model.layers > kDeep;
}

StageJobs::StageJobs(const JobRequest& request, models::ModelOptions sizes, const PlanOptions& options)
    : request_(request), sizes_(std::move(sizes)) {
  const Mesh mesh(options.sizes, options.mesh_order);
  for (int stage = 0; mesh.stages() > 1 && stage < mesh.stages(); ++stage) {
    models::ModelOptions own = sizes_;
    set_shares(own, mesh, rank_of(request, mesh, stage));
    const auto [found, is_new] = wholes_.try_emplace({own.tensor_index, own.expert_rank});
    if (!is_new) continue;
    Whole& whole = found->second;
    whole.outline = models::build_model(own, whole.buffers);
    whole.pieces = std::exchange(whole.outline.pieces, {});
  }
}

ModelSpec StageJobs::model_of(const Whole& whole, const PlanOptions& options, int stage) const {
  // A cut reads the transfers of the neighbours, which means two parts more, and the inputs of those.
  constexpr int kNear = 3;
  std::vector<char> is_near;  // by layer
  for (int part = 0; part < std::ssize(options.layers); ++part) {
    const bool near = !is_deep(request_) || options.schedule.placement.is_near(part, stage, kNear);
    is_near.insert(is_near.end(), static_cast<size_t>(options.layers[static_cast<size_t>(part)]), near);
  }
  ModelSpec model = whole.outline;
  model.pieces.reserve(whole.pieces.size());
  for (const Piece& piece : whole.pieces) {
    const bool in_layer = piece.layer >= 0 && piece.layer < std::ssize(is_near);
    if (!in_layer || is_near[static_cast<size_t>(piece.layer)])
      model.pieces.push_back(piece);
    else
      model.pieces.push_back({.name = piece.name, .layer = piece.layer, .works = {}, .ready = piece.ready});
  }
  return model;
}

std::shared_ptr<Job> StageJobs::build(PlanOptions options, int stage) const {
  const Mesh mesh(options.sizes, options.mesh_order);
  options.rank = rank_of(request_, mesh, stage);
  models::ModelOptions own = sizes_;
  set_shares(own, mesh, options.rank);
  if (wholes_.empty()) {
    Buffers buffers;
    ModelSpec model = models::build_model(own, buffers);
    return std::make_shared<Job>(build_job(std::move(model), std::move(buffers), options));
  }
  const Whole& whole = wholes_.at({own.tensor_index, own.expert_rank});
  return std::make_shared<Job>(build_job(model_of(whole, options, stage), whole.buffers, options));
}

std::vector<std::shared_ptr<Job>> StageJobs::build_all(const PlanOptions& options) const {
  const int stages = options.sizes.pipeline;
  std::vector<std::shared_ptr<Job>> jobs(static_cast<size_t>(stages));
  for_each_index(jobs.size(), threads_for(is_deep(request_) ? SIZE_MAX : jobs.size()),
                 [&](size_t stage) { jobs[stage] = build(options, static_cast<int>(stage)); });
  return jobs;
}

}  // namespace slipstream::planner

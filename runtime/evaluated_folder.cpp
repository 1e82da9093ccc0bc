// SPDX-License-Identifier: Apache-2.0
// Plans an evaluation of a folder's model and loads its weights.

#include "runtime/evaluated_folder.h"

#include "comm/rehearse/price.h"
#include "engine/base/check.h"
#include "engine/plan/build_job.h"
#include "planner/plan_options.h"
#include "planner/planner.h"
#include "runtime/device_assignment.h"

namespace slipstream::runtime {
namespace {

ModelSpec model_of(const models::ModelOptions& options, Buffers& buffers, const std::string& folder) {
  try {
    return models::build_model(options, buffers);
  } catch (const ConfigError& error) {
    throw CheckpointError("[model] {}/config.json is not a model: {}", folder, error.what());
  }
}

}  // namespace

EvaluatedFolder::EvaluatedFolder(const ModelFolder& weights, const EvaluatedFolderOptions& options) {
  models::ModelOptions sizes = weights.model().options;
  sizes.batch = options.batch;
  sizes.tokens = options.tokens;
  sizes.global_tokens = options.batch * options.tokens;
  const DeviceAssignment assignment = assign_device_alone(options.device == "cuda"  ? DeviceChoice::cuda
                                                          : options.device == "cpu" ? DeviceChoice::cpu
                                                                                    : DeviceChoice::automatic);
  Buffers buffers;
  ModelSpec model = model_of(sizes, buffers, weights.dir());
  const auto job = std::make_shared<Job>(build_job(std::move(model), std::move(buffers), {}));
  planner::require_holds(planner::finish_plans({job}, comm::RooflinePrice(comm::Rates{}, comm::Link{})));
  std::vector<std::unique_ptr<comm::Communicator>> none(job->channels.size());
  rank_ = std::make_unique<Rank>(job, assignment.make_device(), std::move(none),
                                 RankOptions{.threads = planner::threads_of(RunConfig{}, 1)}, LoadBatch{});
  weights.require(tensors_of_model(rank_->job().model), false);
  load_weights(*rank_, weights);
}

std::vector<float> EvaluatedFolder::losses(std::span<const int32_t> ids, std::span<const int32_t> targets) {
  std::vector<float> all = rank_->evaluate(ids, targets);
  rank_->drain();
  return all;
}

}  // namespace slipstream::runtime

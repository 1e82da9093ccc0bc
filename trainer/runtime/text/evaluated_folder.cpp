// SPDX-License-Identifier: Apache-2.0
// Plans an evaluation of a folder's model and loads its weights.

#include "trainer/runtime/text/evaluated_folder.h"

#include "comm/rehearse/price.h"
#include "engine/base/check.h"
#include "engine/plan/build_job.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"
#include "trainer/runtime/rank/device_assignment.h"

namespace slipstream::runtime {

EvaluatedFolder::EvaluatedFolder(const ModelFolder& weights, const EvaluatedFolderOptions& options) {
  models::ModelOptions sizes = weights.model().options;
  sizes.batch = options.batch;
  sizes.tokens = options.tokens;
  sizes.global_tokens = options.batch * options.tokens;
  const DeviceAssignment assignment = assign_device_alone(options.device == "cuda"  ? DeviceChoice::cuda
                                                          : options.device == "cpu" ? DeviceChoice::cpu
                                                                                    : DeviceChoice::automatic);
  Buffers buffers;
  ModelSpec model = weights.own_model(sizes, buffers);
  const auto job = std::make_shared<Job>(build_job(std::move(model), std::move(buffers), {}));
  planner::require_holds(planner::finish_plans({job}, comm::RooflinePrice(comm::Rates{}, comm::Link{})));
  std::vector<std::unique_ptr<comm::Communicator>> none(job->channels.size());
  rank_ = std::make_unique<Rank>(job, assignment.make_device(), std::move(none),
                                 RankOptions{.threads = planner::threads_of(RunConfig{}, 1)}, LoadBatch{});
  load_weights(*rank_, weights);
}

std::vector<float> EvaluatedFolder::losses(std::span<const int32_t> ids, std::span<const int32_t> targets) {
  std::vector<float> all = rank_->evaluate(ids, targets);
  rank_->drain();
  return all;
}

}  // namespace slipstream::runtime

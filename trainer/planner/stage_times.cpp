// SPDX-License-Identifier: Apache-2.0
// Sums the durations of spine items over their passes.

#include "trainer/planner/stage_times.h"

#include <algorithm>
#include <array>

namespace slipstream::planner {
namespace {

constexpr int kNoPass = -1;
using PassNs = std::array<int64_t, 3>;  // by Pass

PassNs pass_ns(const Job& job, const std::vector<int64_t>& measured_ns, const comm::RooflinePrice& price) {
  std::vector<int> pass_of(job.model.pieces.size(), kNoPass);
  for (const Chunk& chunk : job.chunks)
    for (Pass pass : {Pass::forward, Pass::backward, Pass::weight})
      for (uint32_t piece : chunk.pieces(pass)) pass_of[piece] = static_cast<int>(pass);
  std::array<double, 3> sum_ns{};
  for (size_t i = 0; i < job.train().spine.size(); ++i) {
    const uint32_t piece = job.train().spine[i].piece;
    if (piece >= pass_of.size() || pass_of[piece] == kNoPass) continue;
    double& sum = sum_ns[static_cast<size_t>(pass_of[piece])];
    if (i < measured_ns.size() && measured_ns[i] >= 0)
      sum += static_cast<double>(measured_ns[i]);
    else
      for (const Work& work : job.model.pieces[piece].works) sum += 1e9 * price.seconds(work.cost);
  }
  PassNs mean_ns{};
  for (size_t pass = 0; pass < mean_ns.size(); ++pass)
    mean_ns[pass] =
        std::max<int64_t>(1, static_cast<int64_t>(sum_ns[pass] / static_cast<double>(job.buffers.micro_batches)));
  return mean_ns;
}

}  // namespace

PlayTimes pass_times(const std::vector<std::shared_ptr<const Job>>& stages,
                     const std::function<std::vector<int64_t>(const Job&)>& measured_ns,
                     const comm::RooflinePrice& price, int64_t transfer_ns) {
  std::vector<PassNs> of_stage;
  for (const auto& job : stages)
    of_stage.push_back(pass_ns(*job, measured_ns ? measured_ns(*job) : std::vector<int64_t>{}, price));
  return {.action_ns =
              [of_stage](int stage, const Action& action) {
                return of_stage[static_cast<size_t>(stage)][static_cast<size_t>(action.pass)];
              },
          .transfer_ns = [transfer_ns](int, const Action&) { return transfer_ns; }};
}

}  // namespace slipstream::planner

// SPDX-License-Identifier: Apache-2.0
// Sums the durations of spine items over their passes.

#include "trainer/planner/stage_times.h"

#include <algorithm>
#include <array>

namespace slipstream::planner {
namespace {

using PassNs = std::array<int64_t, 3>;  // by Pass

std::vector<PassNs> pass_ns(const Job& job, const std::vector<int64_t>& measured_ns, const comm::RooflinePrice& price) {
  struct Measured {
    double sum_ns = 0;
    int count = 0;
  };
  std::vector<Measured> measured(job.model.pieces.size());
  for (size_t i = 0; i < std::min(measured_ns.size(), job.train().spine.size()); ++i) {
    const uint32_t piece = job.train().spine[i].piece;
    if (piece >= measured.size() || measured_ns[i] < 0) continue;
    measured[piece].sum_ns += static_cast<double>(measured_ns[i]);
    ++measured[piece].count;
  }
  std::vector<PassNs> of_chunks;
  for (const Chunk& chunk : job.chunks) {
    PassNs& of_chunk = of_chunks.emplace_back();
    for (Pass pass : {Pass::forward, Pass::backward, Pass::weight}) {
      double ns = 0, seconds = 0;
      for (uint32_t piece : chunk.pieces(pass))
        if (measured[piece].count > 0)
          ns += measured[piece].sum_ns / measured[piece].count;
        else
          for (const Work& work : job.model.pieces[piece].works) seconds += price.seconds(work.cost);
      of_chunk[static_cast<size_t>(pass)] = std::max<int64_t>(1, static_cast<int64_t>(ns + seconds * 1e9));
    }
  }
  return of_chunks;
}

}  // namespace

PlayTimes pass_times(const std::vector<std::shared_ptr<const Job>>& stages,
                     const std::function<std::vector<int64_t>(const Job&)>& measured_ns,
                     const comm::RooflinePrice& price, int64_t transfer_ns) {
  std::vector<std::vector<PassNs>> of_stages;
  for (const auto& job : stages)
    of_stages.push_back(pass_ns(*job, measured_ns ? measured_ns(*job) : std::vector<int64_t>{}, price));
  return {.action_ns =
              [of_stages](int stage, const Action& action) {
                return of_stages[static_cast<size_t>(stage)][static_cast<size_t>(action.chunk)]
                                [static_cast<size_t>(action.pass)];
              },
          .transfer_ns = [transfer_ns](int, const Action&) { return transfer_ns; }};
}

}  // namespace slipstream::planner

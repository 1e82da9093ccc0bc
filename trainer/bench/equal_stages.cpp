// SPDX-License-Identifier: Apache-2.0
// Assigns the time of a pass to its first item. The inputs of the pass have arrived by then, and its outputs are
// complete after its last item.

#include "trainer/bench/equal_stages.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace slipstream::bench {
namespace {

/// Every hop between neighbours takes the same time, and all other communication takes none.
class HopPrice : public comm::RooflinePrice {
 public:
  explicit HopPrice(int64_t transfer_ns) : RooflinePrice({}, {}), hop_ns_(transfer_ns) {}
  comm::WireCost wire(const Plan& plan, ItemId item, Axis, int) const override {
    const Op op = plan[item].op;
    return {.latency_ns = 0, .wire_ns = op == Op::send || op == Op::recv ? hop_ns_ : 0};
  }

 private:
  int64_t hop_ns_;
};

/// Calls `visit` with each use and its time. The uses of a stage are its first spine items, in order.
template <typename Visit>
void for_passes(const Job& job, const std::vector<int64_t>& spine_ns, const Visit& visit) {
  size_t at = job.takes_batch ? 1 : 0;
  for (const Action& use : job.actions) {
    int64_t ns = 0;
    for (size_t pieces = job.chunks[static_cast<size_t>(use.chunk)].pieces(use.pass).size(); pieces-- > 0;)
      ns += spine_ns[at++];
    visit(use, ns);
  }
}

}  // namespace

std::vector<int64_t> equal_stage_ns(const Job& job, int64_t forward_ns) {
  std::vector<int64_t> ns(job.train().spine.size(), 0);
  const int64_t chunks = std::ssize(job.chunks);
  const bool split = job.schedule.splits_backward;
  size_t at = job.takes_batch ? 1 : 0;
  for (const Action& use : job.actions) {
    ns[at] = forward_ns * (use.pass == Pass::backward && !split ? 2 : 1) / chunks;
    at += job.chunks[static_cast<size_t>(use.chunk)].pieces(use.pass).size();
  }
  return ns;
}

PassMs pass_ms(const Job& job, const std::vector<int64_t>& spine_ns) {
  PassMs sums;
  const auto passes = static_cast<double>(job.buffers.micro_batches);  // the chunks of a stage together are one pass
  for_passes(job, spine_ns, [&](const Action& use, int64_t ns) {
    double& sum = use.pass == Pass::forward ? sums.forward : use.pass == Pass::backward ? sums.backward : sums.weight;
    sum += static_cast<double>(ns) / (1e6 * passes);
  });
  return sums;
}

double closed_form_bubble(const PipelineSchedule& schedule) {
  const ScheduleShape& shape = schedule.shape;
  if (!shape.lags.empty())
    return play(schedule, {.action_ns = [](int, const Action&) { return int64_t{1}; }, .transfer_ns = {}}).bubble();
  const double fill =
      static_cast<double>(shape.stages - 1) / (static_cast<double>(shape.micro_batches) * shape.virtual_stages);
  return schedule.splits_backward ? fill / 3 : fill;
}

int64_t busy_ns(const PipelineSchedule& schedule, int64_t forward_ns) {
  return 3 * forward_ns * schedule.shape.micro_batches;
}

double rehearsed_stages_ms(const std::vector<std::shared_ptr<const Job>>& stages,
                           const std::vector<std::vector<int64_t>>& spine_ns, int64_t transfer_ns) {
  std::vector<std::vector<int64_t>> item_ns = spine_ns;
  for (size_t s = 0; s < stages.size(); ++s) item_ns[s].resize(stages[s]->train().size(), 0);
  return planner::rehearsed_step_ms(stages, item_ns, HopPrice(transfer_ns));
}

double ideal_step_ms(const std::vector<std::shared_ptr<const Job>>& stages,
                     const std::vector<std::vector<int64_t>>& spine_ns) {
  std::map<std::tuple<int, Pass, int, int>, int64_t> action_ns;
  int64_t least_rest_ns = INT64_MAX;
  for (size_t s = 0; s < stages.size(); ++s) {
    const Job& job = *stages[s];
    int64_t rest_ns = std::accumulate(spine_ns[s].begin(), spine_ns[s].end(), int64_t{0});
    for_passes(job, spine_ns[s], [&](const Action& use, int64_t ns) {
      action_ns[{static_cast<int>(s), use.pass, use.chunk, use.micro_batch}] = ns;
      rest_ns -= ns;
    });
    least_rest_ns = std::min(least_rest_ns, rest_ns);
  }
  const Played played =
      play(stages[0]->schedule, {.action_ns =
                                     [&](int stage, const Action& use) {
                                       return action_ns.at({stage, use.pass, use.chunk, use.micro_batch});
                                     },
                                 .transfer_ns = {}});
  return static_cast<double>(played.makespan_ns + least_rest_ns) / 1e6;
}

}  // namespace slipstream::bench

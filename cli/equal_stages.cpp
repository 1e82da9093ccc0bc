// SPDX-License-Identifier: Apache-2.0
// Deals the time of a pass to its first item: what it waits for has arrived by then, and what it sends is complete
// after its last.

#include "cli/equal_stages.h"

namespace slipstream::cli {
namespace {

/// Every hop between neighbours takes the same; everything else on a wire takes nothing.
class HopPrice : public comm::RooflinePrice {
 public:
  explicit HopPrice(int64_t hop_ns) : RooflinePrice({}, {}), hop_ns_(hop_ns) {}
  comm::WireCost wire(const Plan& plan, ItemId item, Axis, int) const override {
    const Op op = plan[item].op;
    return {.latency_ns = 0, .wire_ns = op == Op::send || op == Op::recv ? hop_ns_ : 0};
  }

 private:
  int64_t hop_ns_;
};

}  // namespace

std::vector<int64_t> equal_stage_ns(const Job& job, int64_t forward_ns) {
  std::vector<int64_t> ns(job.train.spine.size(), 0);
  const int64_t chunks = std::ssize(job.chunks);
  const bool split = job.options.schedule.splits_backward;
  size_t at = job.takes_batch ? 1 : 0;
  for (const Use& use : job.uses) {
    ns[at] = forward_ns * (use.pass == Pass::backward && !split ? 2 : 1) / chunks;
    at += job.chunks[static_cast<size_t>(use.chunk)].pieces(use.pass).size();
  }
  return ns;
}

PassMs pass_ms(const Job& job, const std::vector<int64_t>& spine_ns) {
  PassMs sums;
  const auto passes = static_cast<double>(job.buffers.micro_batches);  // the chunks of a stage are one pass together
  size_t at = job.takes_batch ? 1 : 0;
  for (const Use& use : job.uses) {
    double& sum = use.pass == Pass::forward ? sums.forward : use.pass == Pass::backward ? sums.backward : sums.weight;
    for (size_t pieces = job.chunks[static_cast<size_t>(use.chunk)].pieces(use.pass).size(); pieces-- > 0;)
      sum += static_cast<double>(spine_ns[at++]) / (1e6 * passes);
  }
  return sums;
}

double closed_form_bubble(const PipelineSchedule& schedule) {
  const ScheduleShape& shape = schedule.shape;
  if (!shape.lags.empty())
    return play(schedule, {.use_ns = [](int, const Use&) { return int64_t{1}; }, .hop_ns = {}}).bubble();
  const double fill =
      static_cast<double>(shape.stages - 1) / (static_cast<double>(shape.micro_batches) * shape.virtual_stages);
  return schedule.splits_backward ? fill / 3 : fill;
}

int64_t busy_ns(const PipelineSchedule& schedule, int64_t forward_ns) {
  return 3 * forward_ns * schedule.shape.micro_batches;
}

double rehearsed_equal_step_ms(const FinishedJob& finished, int64_t forward_ns, int64_t hop_ns) {
  std::vector<std::vector<int64_t>> item_ns;
  for (const auto& stage : finished.stages) {
    item_ns.push_back(equal_stage_ns(*stage, forward_ns));
    item_ns.back().resize(stage->train.size(), 0);
  }
  return rehearsed_step_ms(finished.stages, item_ns, HopPrice(hop_ns));
}

}  // namespace slipstream::cli

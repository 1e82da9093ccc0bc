// SPDX-License-Identifier: Apache-2.0
// Which gradients of a pipeline travel when: in buckets where others wait for them, at once where nobody does, all stages together if asked; and what that
// is worth where communication takes something from compute (docs/notes/0015-stages-that-end-early-reduce-at-once.md).

#include <algorithm>
#include <cstdio>

#include "cli/job.h"
#include "engine/config/load.h"
#include "engine/config/machine.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::cli;

namespace {

const Machine& machine() {
  static const Machine h100 = load_machine(SOURCE_DIR "/configs/machines/h100x8.toml");
  return h100;
}

/// A model of 1.5 billion parameters on 4 stages x 4 data ranks, stages inside a node and data across.
FinishedJob planned(const std::string& schedule, const std::vector<std::string>& more) {
  std::vector<std::string> sets{"model.layers=48", "model.heads=25", "model.width=1600", "model.vocab_size=50257", "model.tie_embeddings=false", "train.dtype=bfloat16",
                                "train.micro_batch_size=1", "train.global_batch_size=32", "parallel.pipeline=4", "parallel.data=4", "parallel.order=tp-cp-pp-dp",
                                "pipeline.schedule=" + schedule};
  if (schedule == "interleaved_1f1b") sets.push_back("pipeline.virtual_stages=2");
  sets.insert(sets.end(), more.begin(), more.end());
  return build_finished_job({.config = default_run_config(sets), .world = 16, .machine = machine()});
}

/// The step when every computation takes `slowdown` times as long while gradients of its rank travel: what they take of the cores and memory of a GPU is
/// measured as 1.1 to 1.8 (docs/notes/0015). Times and overlaps are found in turn until they agree.
double step_ms(const FinishedJob& finished, double slowdown) {
  const Job& first = *finished.job;
  const RunConfig config = default_run_config({"train.dtype=bfloat16"});
  const comm::RooflinePrice machine_price = price_of(config, machine(), first.mesh);
  std::vector<std::vector<int64_t>> alone_ns, item_ns;
  for (const auto& job : finished.stages) {
    alone_ns.emplace_back(job->train.size(), -1);
    for (ItemId i = 0; i < job->train.spine.size(); ++i) alone_ns.back()[i] = machine_price.local_ns(job->train, i);
  }
  item_ns = alone_ns;
  double step = 0;
  for (int turn = 0; turn < (slowdown > 1 ? 8 : 1); ++turn) {
    comm::MeasuredPrice price(machine_price);
    for (size_t s = 0; s < finished.stages.size(); ++s) price.set(finished.stages[s]->train, item_ns[s]);
    const comm::Rehearsal played = comm::rehearse(first.mesh, first.channels, runs_of(finished.stages, 3), price);
    REQUIRE(played.finished);
    step = static_cast<double>(played.ranks[0].step_period_ns(1)) / 1e6;
    for (size_t s = 0; s < finished.stages.size(); ++s) {
      const Plan& plan = finished.stages[s]->train;
      for (ItemId i = 0; i < plan.spine.size(); ++i) {
        const comm::Span item = played.ranks[s].runs[1][i];
        int64_t shared_ns = 0;
        for (ItemId t = static_cast<ItemId>(plan.spine.size()); t < plan.size(); ++t) {
          if (finished.stages[s]->channels[plan[t].channel].name != "reduce") continue;
          const comm::Span travel = played.ranks[s].runs[1][t];
          shared_ns += std::max<int64_t>(0, std::min(item.end_ns, travel.end_ns) - std::max(item.start_ns, travel.start_ns));
        }
        item_ns[s][i] = alone_ns[s][i] + static_cast<int64_t>((1 - 1 / slowdown) * static_cast<double>(shared_ns));
      }
    }
  }
  return step;
}

int64_t reductions(const Job& job) {
  return std::count_if(job.train.tasks.begin(), job.train.tasks.end(), [](const Task& t) { return t.bucket >= 0 && (t.op == Op::all_reduce || t.op == Op::reduce_scatter); });
}

}  // namespace

TEST_CASE("gradients are bucketed where others wait for them, and reduced at once where nobody does", "[pipeline]") {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1"})
    for (const char* align : {"false", "true"})
      for (int zero : {0, 1}) {
        const FinishedJob finished = planned(schedule, {std::string("overlap.align_grad_reduce=") + align, "zero.stage=" + std::to_string(zero)});
        std::printf("  %-17s zero %d align %-5s: step %.2f ms, slowed by 1.3 %.2f, by 1.8 %.2f; reductions", schedule, zero, align, step_ms(finished, 1), step_ms(finished, 1.3),
                    step_ms(finished, 1.8));
        for (const auto& stage : finished.stages) std::printf(" %lld", static_cast<long long>(reductions(*stage)));
        std::printf("\n");
      }
}

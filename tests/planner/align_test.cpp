// SPDX-License-Identifier: Apache-2.0
// Times at which gradients of a pipeline travel: in buckets where others wait for them, at once where none does, all
// stages together if requested; and the benefit when communication slows compute
// (docs/notes/0015-later-pipeline-stages-reduce-in-one-bucket.md).

#include <algorithm>
#include <cstdio>

#include "engine/config/load.h"
#include "engine/config/machine.h"
#include "tests/defaults.h"
#include "tests/paths.h"
#include "tests/test.hpp"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"

using namespace slipstream;
using namespace slipstream::planner;

namespace {

/// Measures without prices by shape: with them the stages' times differ, and ZB-H1's last stage ends before the first.
const Machine& machine() {
  static const Machine h100 = [] {
    Machine loaded = load_machine(source_dir() + "/configs/machines/h100x8.toml");
    loaded.attention_efficiency = 0;
    return loaded;
  }();
  return h100;
}

/// A model of 1.5 billion parameters on 4 stages x 4 data ranks. Data ranks are inside a node, so reductions are
/// shorter than the backward pass of a micro-batch.
FinishedJob planned(const std::string& schedule, const std::vector<std::string>& more) {
  std::vector<std::string> sets{"model.layers=48",
                                "model.heads=25",
                                "model.width=1600",
                                "model.vocab_size=50257",
                                "model.tie_embeddings=false",
                                "train.dtype=bfloat16",
                                "comm.grad_dtype=float32",  // encoded gradients keep their buckets on every stage
                                "train.micro_batch_size=4",
                                "train.global_batch_size=128",
                                "parallel.pipeline=4",
                                "parallel.data=4",
                                "parallel.order=dp-tp-cp-pp",
                                "pipeline.schedule=" + schedule};
  if (schedule == "zb_h1") sets.push_back("overlap.p2p=false");  // as published, so its stages end together
  if (schedule == "interleaved_1f1b") sets.push_back("pipeline.virtual_stages=2");
  sets.insert(sets.end(), more.begin(), more.end());
  return build_finished_job({.config = resolve(default_run_config(sets), {.world = 16}), .machine = machine()});
}

/// The step when every computation takes `slowdown` times as long while gradients of its rank travel: the load on the
/// cores and memory of a GPU is reported as up to 1.8 (NVIDIA/nccl#1428). Times and overlaps are computed in turn until
/// they agree.
double step_ms(const FinishedJob& finished, double slowdown) {
  const Job& first = *finished.job;
  const RunConfig config = default_run_config({"train.dtype=bfloat16"});
  const comm::RooflinePrice machine_price = price_of(config, machine(), first.mesh);
  std::vector<std::vector<int64_t>> alone_ns, item_ns;
  for (const auto& job : finished.stages) {
    alone_ns.emplace_back(job->train().size(), -1);
    for (ItemId i = 0; i < job->train().spine.size(); ++i) alone_ns.back()[i] = machine_price.local_ns(job->train(), i);
  }
  item_ns = alone_ns;
  double step = 0;
  for (int turn = 0; turn < (slowdown > 1 ? 8 : 1); ++turn) {
    comm::MeasuredPrice price(machine_price);
    for (size_t s = 0; s < finished.stages.size(); ++s) price.set(finished.stages[s]->train(), item_ns[s]);
    const comm::Rehearsal played = comm::rehearse(first.mesh, first.channels, runs_of(finished.stages, 3), price);
    REQUIRE(played.finished);
    step = static_cast<double>(played.ranks[0].step_period_ns(1)) / 1e6;
    for (size_t s = 0; s < finished.stages.size(); ++s) {
      const Plan& plan = finished.stages[s]->train();
      for (ItemId i = 0; i < plan.spine.size(); ++i) {
        const comm::Span item = played.ranks[s].runs[1][i];
        int64_t shared_ns = 0;
        for (ItemId t = static_cast<ItemId>(plan.spine.size()); t < plan.size(); ++t) {
          if (finished.stages[s]->channels[plan[t].channel].role != Role::reduce) continue;
          const comm::Span travel = played.ranks[s].runs[1][t];
          shared_ns +=
              std::max<int64_t>(0, std::min(item.end_ns, travel.end_ns) - std::max(item.start_ns, travel.start_ns));
        }
        item_ns[s][i] = alone_ns[s][i] + static_cast<int64_t>((1 - 1 / slowdown) * static_cast<double>(shared_ns));
      }
    }
  }
  return step;
}

int64_t reductions(const Job& job) {
  return std::count_if(job.train().tasks.begin(), job.train().tasks.end(), [](const Task& t) {
    return t.bucket >= 0 && (t.op == Op::all_reduce || t.op == Op::reduce_scatter);
  });
}

constexpr const char* kSchedules[] = {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1"};

}  // namespace

TEST_CASE("gradients are bucketed on the critical path and reduced at once elsewhere", "[pipeline]") {
  for (const std::string schedule : kSchedules) {
    const FinishedJob finished = planned(schedule, {"zero.stage=0"}), everywhere = planned(schedule, {"zero.stage=1"});
    const int64_t chunks = std::ssize(finished.job->chunks);
    for (size_t s = 0; s < finished.stages.size(); ++s) {
      CAPTURE(schedule, s, reductions(*finished.stages[s]), reductions(*everywhere.stages[s]));
      CHECK(reductions(*everywhere.stages[s]) > 30);
      // The weight gradients of ZB-H1 end on all stages with the first.
      if (schedule == "zb_h1") CHECK(reductions(*finished.stages[s]) == reductions(*everywhere.stages[s]));
      if (schedule != "zb_h1" && s > 0) CHECK(reductions(*finished.stages[s]) == chunks);
      if (schedule != "zb_h1" && s == 0) CHECK(reductions(*finished.stages[s]) > 15);
    }
    if (schedule == "zb_h1") continue;
    // This holds in the rehearsal too: gradients that are sent at once have arrived when the first stage ends its
    // backward pass.
    const Job& first = *finished.job;
    const comm::Rehearsal played =
        comm::rehearse(first.mesh, first.channels, runs_of(finished.stages, 2),
                       price_of(default_run_config({"train.dtype=bfloat16"}), machine(), first.mesh));
    REQUIRE(played.finished);
    int64_t backward_ns = 0;
    for (ItemId i = 0; i < first.train().spine.size(); ++i)
      if (first.train().spine[i].op == Op::compute) backward_ns = played.ranks[0].runs[1][i].end_ns;
    for (size_t s = 1; s < finished.stages.size(); ++s)
      for (ItemId t = static_cast<ItemId>(finished.stages[s]->train().spine.size());
           t < finished.stages[s]->train().size(); ++t)
        if (finished.stages[s]->train()[t].op == Op::all_reduce && finished.stages[s]->train()[t].bucket >= 0)
          CHECK(played.ranks[s].runs[1][t].end_ns < backward_ns);
  }
}

TEST_CASE("stages that begin to reduce together lose no time, and win where communication slows compute",
          "[pipeline]") {
  constexpr double kSlowdown = 1.3;
  for (const std::string schedule : kSchedules)
    for (int zero : {0, 1}) {
      const std::vector<std::string> sets{"zero.stage=" + std::to_string(zero)},
          aligned{sets[0], "overlap.align_grad_reduce=true"};
      const FinishedJob freely = planned(schedule, sets), together = planned(schedule, aligned);
      const double free_ms = step_ms(freely, 1), together_ms = step_ms(together, 1),
                   free_slowed_ms = step_ms(freely, kSlowdown), together_slowed_ms = step_ms(together, kSlowdown);
      std::printf("  %-17s ZeRO-%d: step %.2f ms, slowed %.2f; aligned %.2f, slowed %.2f\n", schedule.c_str(), zero,
                  free_ms, free_slowed_ms, together_ms, together_slowed_ms);
      CAPTURE(schedule, zero, free_ms, together_ms, free_slowed_ms, together_slowed_ms);
      CHECK(together_ms < 1.001 * free_ms);
      CHECK(together_slowed_ms < 1.001 * free_slowed_ms);
      // With buckets on every stage, each slows its last backward pass, for which the previous stage waits; aligned,
      // only the first stage does.
      if (zero == 1 && schedule != "zb_h1") CHECK(together_slowed_ms - together_ms < 0.5 * (free_slowed_ms - free_ms));
    }
}

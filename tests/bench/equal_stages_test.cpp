// SPDX-License-Identifier: Apache-2.0
// Pipelines of the real planner on stages of equal times, rehearsed: the bubbles of the papers, and hidden transfers.

#include <algorithm>
#include <cmath>

#include "engine/config/load.h"
#include "engine/config/validate.h"
#include "tests/defaults.h"
#include "tests/paths.h"
#include "tests/test.hpp"
#include "trainer/bench/equal_stages.h"
#include "trainer/planner/forecast/plan_facts.h"
#include "trainer/planner/planner.h"

using namespace slipstream;
using namespace slipstream::bench;
using namespace slipstream::planner;

namespace {

constexpr int64_t kForwardNs = 12'000'000;

/// The planner receives the times of passes and chooses by them.
FinishedJob planned(
    ScheduleKind schedule, int stages, int micro_batches, bool hides_transfers,
    const std::function<std::vector<int64_t>(const Job&)>& measured_ns = [](const Job& job) {
      return equal_stage_ns(job, kForwardNs);
    }) {
  RunConfig config;
  config.model = {.layers = 2 * stages, .heads = 2, .width = 16, .context = 8, .vocab_size = 32};
  config.data.train = "none";
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = micro_batches;
  config.parallel.pipeline = stages;
  config.pipeline.schedule = schedule;
  config.pipeline.virtual_stages = chunks_of(schedule) == 1 ? 1 : 2;
  config.overlap.p2p = hides_transfers;
  config.comm.emulate.bandwidth_bytes_per_second = hides_transfers ? 1000 : 1'000'000'000;
  return build_finished_job(
      {.config = resolve(config, {.world = stages}), .machine = this_host(1), .spine_ns = measured_ns});
}

double rehearsed_equal_step_ms(const FinishedJob& finished, int64_t transfer_ns) {
  std::vector<std::vector<int64_t>> spine_ns;
  for (const auto& stage : finished.stages) spine_ns.push_back(equal_stage_ns(*stage, kForwardNs));
  return rehearsed_stages_ms(finished.stages, spine_ns, transfer_ns);
}

}  // namespace

TEST_CASE("the rehearsed bubble of equal stages is the closed form", "[pipeline]") {
  for (ScheduleKind schedule : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved_1f1b,
                                ScheduleKind::zb_h1, ScheduleKind::zb_v})
    for (int stages : {2, 4})
      for (int micro_batches : {schedule == ScheduleKind::zb_v ? 2 * stages - 2 : stages, 4 * stages}) {
        const FinishedJob finished = planned(schedule, stages, micro_batches, false);
        const PipelineSchedule& order = finished.job->schedule;
        const double busy_ms = static_cast<double>(busy_ns(order, kForwardNs)) / 1e6;
        const double bubble = (rehearsed_equal_step_ms(finished, 0) - busy_ms) / busy_ms;
        CAPTURE(static_cast<int>(schedule), stages, micro_batches, bubble, closed_form_bubble(order));
        CHECK(std::abs(bubble - closed_form_bubble(order)) < 0.03 * closed_form_bubble(order));
        // The schedule alone has this bubble, however long the transfers are.
        std::vector<std::vector<int64_t>> spine_ns;
        for (const auto& stage : finished.stages) spine_ns.push_back(equal_stage_ns(*stage, kForwardNs));
        const double ideal_ms = ideal_step_ms(planned(schedule, stages, micro_batches, true).stages, spine_ns);
        CHECK(std::abs(ideal_ms - busy_ms * (1 + closed_form_bubble(order))) < 1e-6 * ideal_ms);
      }
}

TEST_CASE("the ideal step of stages that differ is played, and the shortest update follows it", "[pipeline]") {
  const FinishedJob finished = planned(ScheduleKind::gpipe, 2, 2, false);
  std::vector<std::vector<int64_t>> spine_ns;
  for (const auto& stage : finished.stages) {
    const bool first = stage->stage() == 0;
    std::vector<int64_t> ns(stage->train().spine.size(), 0);
    size_t at = stage->takes_batch ? 1 : 0;
    for (const Action& use : stage->actions) {
      ns[at] = use.pass == Pass::forward ? (first ? 1'000'000 : 3'000'000) : (first ? 2'000'000 : 4'000'000);
      at += stage->chunks[0].pieces(use.pass).size();
    }
    ns.back() = first ? 5'000'000 : 7'000'000;
    spine_ns.push_back(ns);
  }
  // Forward 0-1, 1-2 on the first stage and 1-4, 4-7 on the second; backward 7-11, 11-15 there and 11-13, 15-17 here.
  CHECK(ideal_step_ms(finished.stages, spine_ns) == 17 + 5);
}

TEST_CASE(
    "a ZB-H1 plan takes its lags from the times of its passes, and prints lags that differ from the published ones",
    "[pipeline]") {
  const auto line = [](const FinishedJob& finished) {
    RunConfig config;
    config.pipeline.schedule = ScheduleKind::zb_h1;
    return schedule_line(
        config, finished.stages,
        play(finished.job->schedule, {.action_ns = [](int, const Action&) { return int64_t{1}; }, .transfer_ns = {}}));
  };
  const FinishedJob equal = planned(ScheduleKind::zb_h1, 2, 2, false);
  CHECK(equal.job->schedule.stages == make_schedule(ScheduleKind::zb_h1, {.stages = 2, .micro_batches = 2}).stages);
  CHECK(line(equal).find("lag") == std::string::npos);
  // Forwards of the first stage and weight gradients of the second one take long, everything else almost nothing.
  const FinishedJob unequal = planned(ScheduleKind::zb_h1, 2, 2, false, [](const Job& job) {
    std::vector<int64_t> ns = equal_stage_ns(job, kForwardNs);
    size_t at = job.takes_batch ? 1 : 0;
    for (const Action& use : job.actions) {
      if (use.pass != (job.stage() == 0 ? Pass::forward : Pass::weight)) ns[at] /= 10;
      at += job.chunks[0].pieces(use.pass).size();
    }
    return ns;
  });
  CHECK(unequal.job->schedule.shape.lags == std::vector<int>{0, 0});
  CHECK(unequal.proof.holds());
  CHECK(line(unequal).find("weight gradients lag by 0, 0 micro-batches on the stages, chosen by the times of passes") !=
        std::string::npos);
}

TEST_CASE("slow transfers make ZB-H1 keep more micro-batches alive, within the memory of its first stage",
          "[pipeline]") {
  Machine machine = load_machine(source_dir() + "/configs/machines/h100x8.toml");
  machine.ranks_per_node = 1;  // so that transfers cross nodes
  const FinishedJob finished = build_finished_job(
      {.config = resolve(
           default_run_config({"model.layers=48", "model.heads=25", "model.width=1600", "model.vocab_size=50257",
                               "model.tie_embeddings=false", "train.dtype=bfloat16", "train.micro_batch_size=4",
                               "train.global_batch_size=32", "parallel.pipeline=4", "pipeline.schedule=zb_h1"}),
           {.world = 4}),
       .machine = machine,
       .proves = false});
  const ScheduleShape& shape = finished.job->schedule.shape;
  REQUIRE(shape.hides_transfers);
  REQUIRE(shape.lags.size() == 4);
  CHECK(std::max_element(shape.lags.begin(), shape.lags.end()) == shape.lags.end() - 1);
  CHECK(shape.lags.back() > 3);
  // The shortest step, with every stage at its largest lag, needs more memory than this, so the planner tries this one
  // next.
  CHECK(shape.lags != most_lags(shape));
  // Stage 0 does not lag, as published, and then has more micro-batches in flight than the others.
  CHECK(shape.lags[0] == 0);
  CHECK(largest_stage(finished).stage() == 0);
}

TEST_CASE("transfers of up to half a pass cost less than 2 % of a step besides the first and the last one",
          "[pipeline]") {
  for (ScheduleKind schedule : {ScheduleKind::one_f_one_b, ScheduleKind::interleaved_1f1b, ScheduleKind::zb_h1})
    for (int stages : {2, 4}) {
      const FinishedJob finished = planned(schedule, stages, 8 * stages, true);
      const PipelineSchedule& order = finished.job->schedule;
      const double alone_ms = rehearsed_equal_step_ms(finished, 0);
      for (double ratio : {0.1, 0.25, 0.5}) {
        const auto transfer_ns =
            static_cast<int64_t>(ratio * static_cast<double>(kForwardNs) / order.shape.virtual_stages);
        const double step_ms = rehearsed_equal_step_ms(finished, transfer_ns),
                     fill_ms = 2.0 * (order.parts() - 1) * static_cast<double>(transfer_ns) / 1e6;
        CAPTURE(static_cast<int>(schedule), stages, ratio, alone_ms, step_ms, fill_ms);
        CHECK(step_ms - alone_ms - fill_ms < 0.02 * step_ms);
      }
    }
}

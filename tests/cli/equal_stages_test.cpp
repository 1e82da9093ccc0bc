// SPDX-License-Identifier: Apache-2.0
// Pipelines of the real planner on stages of equal times, rehearsed: the bubbles of the papers, and hops under compute.

#include <cmath>

#include "cli/equal_stages.h"
#include "engine/config/validate.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::cli;

namespace {

constexpr int64_t kForwardNs = 12'000'000;

FinishedJob planned(Schedule schedule, int stages, int micro_batches, bool hides_hops) {
  RunConfig config;
  config.model = {.layers = 2 * stages, .heads = 2, .width = 16, .context = 8, .vocab_size = 32};
  config.data.train = "none";
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = micro_batches;
  config.parallel.pipeline = stages;
  config.pipeline.schedule = schedule;
  config.pipeline.virtual_stages = schedule == Schedule::interleaved_1f1b ? 2 : 1;
  config.overlap.p2p = hides_hops;
  config.comm.emulate.bandwidth_bytes_per_second = 1000;
  return build_finished_job({.config = resolve_defaults(config), .world = stages, .machine = this_host(1)});
}

}  // namespace

TEST_CASE("the rehearsed bubble of equal stages is the closed form", "[pipeline]") {
  for (Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved_1f1b, Schedule::zb_h1})
    for (int stages : {2, 4})
      for (int micro_batches : {stages, 4 * stages}) {
        const FinishedJob finished = planned(schedule, stages, micro_batches, false);
        const PipelineSchedule& order = finished.job->options.schedule;
        const double busy_ms = static_cast<double>(busy_ns(order, kForwardNs)) / 1e6;
        const double bubble = (rehearsed_equal_step_ms(finished, kForwardNs, 0) - busy_ms) / busy_ms;
        CAPTURE(static_cast<int>(schedule), stages, micro_batches, bubble, closed_form_bubble(order));
        CHECK(std::abs(bubble - closed_form_bubble(order)) < 0.03 * closed_form_bubble(order));
      }
}

TEST_CASE("hops of up to half a pass cost less than 2 % of a step, beyond the first and the last of them", "[pipeline]") {
  for (Schedule schedule : {Schedule::one_f_one_b, Schedule::interleaved_1f1b, Schedule::zb_h1})
    for (int stages : {2, 4}) {
      const FinishedJob finished = planned(schedule, stages, 8 * stages, true);
      const PipelineSchedule& order = finished.job->options.schedule;
      const double alone_ms = rehearsed_equal_step_ms(finished, kForwardNs, 0);
      for (double ratio : {0.1, 0.25, 0.5}) {
        const auto hop_ns = static_cast<int64_t>(ratio * static_cast<double>(kForwardNs) / order.shape.virtual_stages);
        const double step_ms = rehearsed_equal_step_ms(finished, kForwardNs, hop_ns),
                     fill_ms = 2.0 * (order.parts() - 1) * static_cast<double>(hop_ns) / 1e6;
        CAPTURE(static_cast<int>(schedule), stages, ratio, alone_ms, step_ms, fill_ms);
        CHECK(step_ms - alone_ms - fill_ms < 0.02 * step_ms);
      }
    }
}

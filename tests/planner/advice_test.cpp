// SPDX-License-Identifier: Apache-2.0
// The cause of a step's time on machines that leave no doubt about it, automatic bucket sizes, and symmetric ranks.

#include <algorithm>

#include "tests/paths.h"
#include "tests/sample.h"
#include "tests/test.hpp"
#include "trainer/planner/forecast/advice.h"
#include "trainer/planner/forecast/planned.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"

using namespace slipstream;
using namespace slipstream::planner;

namespace {

PlanRequest request(int ranks, const std::vector<std::string>& sets) {
  PlanRequest made;
  made.run_file = source_dir() + "/configs/runs/llama_1b.toml";
  made.sets = {"model.layers=4", "model.vocab_size=32000", "train.sequence_length=1024", "train.global_batch_size=16"};
  made.sets.insert(made.sets.end(), sets.begin(), sets.end());
  made.ranks = ranks;
  made.machine = source_dir() + "/configs/machines/h100x8.toml";
  made.proves = false;
  return made;
}

StepShares shares(int ranks, const std::vector<std::string>& sets) {
  const Planned planned = make_plan(request(ranks, sets));
  const comm::Rehearsal rehearsal = rehearse_step(planned);
  const StepShares made = shares_of(planned, rehearsal);
  // Every moment of three steps has one cause.
  CHECK(made.sum_ms() == Approx(totals_of(planned, rehearsal).step_ms).epsilon(0.15));
  return made;
}

double of(const StepShares& shares, Bottleneck bottleneck) { return shares.ms[static_cast<size_t>(bottleneck)]; }

}  // namespace

TEST_CASE("advice: the bottleneck is the one that the setting creates", "[planner]") {
  const StepShares alone = shares(1, {});
  CHECK(alone.largest() == Bottleneck::compute);
  CHECK(of(alone, Bottleneck::bandwidth) + of(alone, Bottleneck::latency) + of(alone, Bottleneck::bubble) == 0);
  CHECK(shares(4, {"comm.emulate.bandwidth=1GB/s"}).largest() == Bottleneck::bandwidth);
  CHECK(shares(4, {"comm.emulate.bandwidth=100GB/s", "comm.emulate.latency=50ms"}).largest() == Bottleneck::latency);
  CHECK(shares(4, {"parallel.pipeline=4", "train.global_batch_size=1"}).largest() == Bottleneck::bubble);
}

TEST_CASE("advice: the longest waits name the waiting pass and the awaited message", "[planner]") {
  const Planned planned = make_plan(request(4, {"zero.stage=3", "comm.emulate.bandwidth=5GB/s"}));
  const comm::Rehearsal rehearsal = rehearse_step(planned);
  const std::vector<LongWait> waits = longest_waits(planned, rehearsal, 100);
  REQUIRE(!waits.empty());
  double sum_ms = 0;
  for (size_t i = 0; i < waits.size(); ++i) {
    if (i > 0) CHECK(waits[i].ms <= waits[i - 1].ms);
    sum_ms += waits[i].ms;
  }
  CHECK(sum_ms >= 0.99 * totals_of(planned, rehearsal).exposed_ms);
  CHECK(std::any_of(waits.begin(), waits.end(), [](const LongWait& wait) {
    return wait.waiter.starts_with("forward of layer") && wait.awaited.starts_with("all_gather of layer");
  }));
}

TEST_CASE("overlap.bucket_size = auto is the compared size with the shortest step", "[planner]") {
  for (const char* bandwidth : {"1GB/s", "20GB/s"}) {
    const std::vector<std::string> sets = {std::string("comm.emulate.bandwidth=") + bandwidth,
                                           "comm.emulate.latency=100us", "overlap.first_bucket_size=1MiB"};
    const auto period_ns = [&](const std::string& size) {
      std::vector<std::string> own = sets;
      own.push_back("overlap.bucket_size=" + size);
      const Drawn drawn = draw(request(4, own));
      JobRequest asked{.config = drawn.config, .machine = drawn.machine, .nccl = drawn.nccl, .proves = false};
      asked.config = with_bucket_size(asked);
      return step_period_ns(asked, build_job_with_update(asked, {}), false);
    };
    const int64_t chosen_ns = period_ns("auto");
    for (const char* size : {"4MiB", "25MiB", "100MiB", "400MiB"}) CHECK(chosen_ns <= period_ns(size));
  }
  std::vector<std::string> sets = {"overlap.bucket_size=auto"};
  const Planned planned = make_plan(request(4, sets));
  CHECK(planned.chose_bucket_size);
  CHECK(planned.config->overlap.bucket_size_bytes == planned.finished.job->options.bucket_bytes);
}

TEST_CASE("one representative of each stage and all ranks end every item at the same time", "[planner]") {
  std::vector<std::vector<std::string>> layouts = {
      {"parallel.tensor=2", "parallel.pipeline=2", "parallel.context=2", "zero.stage=1"}};
  if (test_everything()) {
    layouts.push_back({"parallel.tensor=2", "parallel.pipeline=2", "parallel.context=2", "zero.stage=3"});
    layouts.push_back({"parallel.tensor=4", "zero.stage=3", "zero.shard_size=2"});
    layouts.push_back({"parallel.pipeline=4", "zero.stage=2", "pipeline.schedule=zb_h1"});
  }
  for (std::vector<std::string> sets : layouts) {
    CAPTURE(sets);
    const Planned planned = make_plan(request(16, sets));
    const Mesh& mesh = planned.finished.job->mesh;
    const comm::RooflinePrice price = price_of(*planned.config, planned.machine, mesh);
    const std::vector<comm::RankRuns> stages = runs_of(planned.finished.stages, 3);
    std::vector<comm::RankRuns> all;
    for (int rank = 0; rank < mesh.world(); ++rank) {
      all.push_back(stages[static_cast<size_t>(mesh.coordinates(rank).pipeline)]);
      all.back().rank = rank;
    }
    const auto played = [&](const std::vector<comm::RankRuns>& ranks, bool collapse) {
      return comm::rehearse(mesh, planned.finished.job->channels, ranks, price,
                            {.gate = comm::Gate::launch_order, .collapse = collapse});
    };
    const comm::Rehearsal few = played(stages, true), each = played(all, false);
    REQUIRE(few.finished);
    REQUIRE(each.finished);
    size_t different = 0, items = 0;
    for (const comm::RankTimes& times : each.ranks) {
      const auto& of_stage = few.ranks[static_cast<size_t>(mesh.coordinates(times.rank).pipeline)].runs;
      for (size_t run = 0; run < of_stage.size(); ++run)
        for (size_t item = 0; item < of_stage[run].size(); ++item, ++items)
          different += of_stage[run][item].end_ns != times.runs[run][item].end_ns;
    }
    CHECK(items > 1000);
    CHECK(different == 0);
  }
}

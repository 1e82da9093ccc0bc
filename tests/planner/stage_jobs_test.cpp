// SPDX-License-Identifier: Apache-2.0
// Compares jobs of stages from one model, on deep pipelines without the works of distant layers, with jobs from whole
// models.

#include "trainer/planner/stage_jobs.h"

#include <fmt/core.h>

#include "engine/plan/build_job.h"
#include "tests/paths.h"
#include "tests/test.hpp"
#include "trainer/planner/forecast/planned.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"
#include "trainer/planner/stage_times.h"

using namespace slipstream;
using namespace slipstream::planner;

namespace {

void check_same(const Job& made, const Job& expected) {
  CHECK(made.buffers.total_bytes() == expected.buffers.total_bytes());
  CHECK(made.parameter_elems == expected.parameter_elems);
  REQUIRE(made.channels.size() == expected.channels.size());
  REQUIRE(made.plans.size() == expected.plans.size());
  for (size_t row = 0; row < made.plans.size(); ++row) {
    const Plan &plan = made.plans[row].plan, &wanted = expected.plans[row].plan;
    REQUIRE(plan.size() == wanted.size());
    size_t same = 0;
    for (ItemId i = 0; i < plan.size(); ++i) {
      const Item &item = plan[i], &other = wanted[i];
      same += item.name == other.name && item.channel == other.channel && item.op == other.op &&
              item.after == other.after && item.reads == other.reads && item.writes == other.writes &&
              item.cost.flops == other.cost.flops && item.cost.bytes == other.cost.bytes;
    }
    CHECK(same == plan.size());
  }
}

}  // namespace

TEST_CASE("stage jobs: those of a deep pipeline are cut from the whole model", "[planner]") {
  struct Row {
    const char* schedule;
    int stages, virtual_stages;
  };
  for (const Row& row : {Row{"1f1b", 66, 1}, Row{"zb_h1", 66, 1}, Row{"interleaved_1f1b", 34, 4}, Row{"zb_v", 46, 2},
                         Row{"1f1b", 5, 1}}) {
    CAPTURE(row.schedule, row.stages);
    PlanRequest asked;
    asked.run_file = source_dir() + "/configs/runs/gpt2_xl.toml";
    const int layers = row.stages * row.virtual_stages;
    asked.sets = {"model.width=32",
                  "model.heads=2",
                  "model.ffn_width=64",
                  "model.context=32",
                  "model.vocab_size=128",
                  "train.sequence_length=32",
                  "train.micro_batch_size=1",
                  fmt::format("train.global_batch_size={}", row.stages),
                  fmt::format("model.layers={}", layers),
                  fmt::format("parallel.pipeline={}", row.stages),
                  fmt::format("pipeline.schedule={}", row.schedule),
                  fmt::format("pipeline.virtual_stages={}", row.virtual_stages)};
    asked.ranks = row.stages;
    asked.machine = source_dir() + "/configs/machines/h100x8.toml";
    const Drawn drawn = draw(asked);
    const JobRequest request{.config = drawn.config, .machine = drawn.machine, .nccl = drawn.nccl};
    CHECK(is_deep(request) == (row.stages > 5));
    PlanOptions options = plan_options(request);
    models::ModelOptions sizes = model_options(request);
    const Mesh mesh(options.sizes, options.mesh_order);
    options.layers = partition_layers(request, sizes, mesh).layers;
    options.schedule = schedule_of(request.config, {});
    sizes.split_backward = options.schedule.splits_backward;
    sizes.cuts = cuts_of(options.layers);
    sizes.ends_apart = options.schedule.placement.ends_apart();
    const StageJobs jobs(request, sizes, options);
    for (const int stage : {0, 1, row.stages / 2, row.stages - 2, row.stages - 1}) {
      CAPTURE(stage);
      PlanOptions own = options;
      own.rank = mesh.rank({.pipeline = stage});
      Buffers buffers;
      ModelSpec whole = models::build_model(sizes, buffers);
      check_same(*jobs.build(options, stage), build_job(std::move(whole), std::move(buffers), own));
    }
  }
}

TEST_CASE("stage times: the pass of a chunk takes the time of its own pieces", "[planner]") {
  for (const char* schedule : {"interleaved_1f1b", "zb_v"}) {
    CAPTURE(schedule);
    PlanRequest asked;
    asked.run_file = source_dir() + "/configs/runs/gpt2_xl.toml";
    asked.sets = {"model.layers=6",
                  "train.micro_batch_size=1",
                  "train.global_batch_size=4",
                  "parallel.pipeline=2",
                  std::string("pipeline.schedule=") + schedule,
                  "pipeline.virtual_stages=2",
                  "pipeline.layers=[1, 2, 2, 1]"};
    asked.ranks = 2;
    asked.machine = source_dir() + "/configs/machines/h100x8.toml";
    const Drawn drawn = draw(asked);
    const FinishedJob drafted =
        build_drafted_job({.config = drawn.config, .machine = drawn.machine, .nccl = drawn.nccl});
    const comm::RooflinePrice price = price_of(*drawn.config, drawn.machine, drafted.job->mesh);
    static constexpr int64_t kPieceNs = 100;
    const auto all_alike = [](const Job& job) { return std::vector<int64_t>(job.train().spine.size(), kPieceNs); };
    const PlayTimes measured = pass_times(drafted.stages, all_alike, price, 0),
                    priced = pass_times(drafted.stages, {}, price, 0);
    for (const auto& job : drafted.stages)
      for (int chunk = 0; chunk < 2; ++chunk)
        for (Pass pass : {Pass::forward, Pass::backward, Pass::weight}) {
          CAPTURE(job->stage(), chunk, static_cast<int>(pass));
          const std::vector<uint32_t>& pieces = job->chunks[static_cast<size_t>(chunk)].pieces(pass);
          const Action action{.pass = pass, .chunk = chunk};
          CHECK(measured.action_ns(job->stage(), action) == std::max<int64_t>(1, kPieceNs * std::ssize(pieces)));
          double seconds = 0;
          for (uint32_t piece : pieces)
            for (const Work& work : job->model.pieces[piece].works) seconds += price.seconds(work.cost);
          CHECK(static_cast<double>(priced.action_ns(job->stage(), action)) == Approx(1e9 * seconds).margin(1));
        }
  }
}

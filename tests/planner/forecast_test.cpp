// SPDX-License-Identifier: Apache-2.0
// Forecasts by two short plans against the rehearsal of the whole plan, and the properties of software profiles.

#include "planner/forecast.h"
#include "planner/plan_options.h"
#include "planner/planner.h"
#include "planner/software.h"
#include "tests/paths.h"
#include "tests/sample.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::planner;

namespace {

PlanRequest request(int ranks, const std::vector<std::string>& sets, const std::string& as = "megatron") {
  PlanRequest made;
  made.run_file = source_dir() + "/configs/runs/gpt2_xl.toml";
  made.sets = {"model.layers=8", "train.micro_batch_size=1"};
  made.sets.insert(made.sets.end(), sets.begin(), sets.end());
  made.ranks = ranks;
  made.machine = source_dir() + "/configs/machines/h100x8.toml";
  made.as = as;
  return made;
}

/// The rehearsal of the whole plan, with the update on the compute stream as in a forecast.
double whole_ms(const PlanRequest& asked) {
  const Drawn drawn = draw(asked);
  const JobRequest job{.config = drawn.config, .machine = drawn.machine, .nccl = drawn.nccl, .proves = false};
  return static_cast<double>(step_period_ns(job, build_job_with_update(job, {}), false)) / 1e6;
}

}  // namespace

TEST_CASE("forecast: a line through two short plans equals the rehearsal of the whole plan", "[planner]") {
  struct Row {
    int ranks;
    std::vector<std::string> sets;
  };
  std::vector<Row> rows = {
      {2, {"zero.stage=1", "train.global_batch_size=32"}},
      {8, {"parallel.pipeline=4", "train.global_batch_size=64"}},
      {4, {"parallel.pipeline=2", "parallel.tensor=2", "model.heads=20", "train.global_batch_size=24"}},
      {4,
       {"parallel.pipeline=2", "pipeline.schedule=interleaved_1f1b", "pipeline.virtual_stages=2",
        "train.global_batch_size=32"}},
  };
  if (test_everything()) {
    rows.push_back({8, {"zero.stage=3", "train.global_batch_size=64"}});
    rows.push_back({16, {"parallel.context=2", "train.global_batch_size=64"}});
  }
  for (const Row& row : rows) {
    const PlanRequest asked = request(row.ranks, row.sets);
    const Forecast made = forecast(asked);
    CHECK(made.rehearsed < made.micro_batches);
    CHECK(made.step_ms == Approx(whole_ms(asked)).epsilon(0.01));
  }
}

TEST_CASE("forecast: few micro-batches of a deep pipeline give the step and the memory of many", "[planner]") {
  for (const char* schedule : {"1f1b", "zb_h1"}) {
    CAPTURE(schedule);
    const PlanRequest asked =
        request(64, {"model.layers=64", "parallel.pipeline=64", std::string("pipeline.schedule=") + schedule,
                     "train.global_batch_size=100"});
    const Forecast made = forecast(asked);
    CHECK(made.rehearsed == 64);
    CHECK(made.step_ms == Approx(whole_ms(asked)).epsilon(0.01));
    const Drawn drawn = draw(asked);
    const FinishedJob whole = build_drafted_job({.config = drawn.config, .machine = drawn.machine, .nccl = drawn.nccl});
    CHECK(static_cast<double>(made.memory_bytes) == Approx(most_bytes(whole)).epsilon(0.02));
  }
}

TEST_CASE("forecast: slower software never takes less time", "[planner]") {
  const double ours = forecast(request(2, {}, "")).step_ms;
  CHECK(forecast(request(2, {}, "megatron")).step_ms > ours);
  CHECK(forecast(request(2, {}, "fsdp")).step_ms > ours);
  CHECK(forecast(request(2, {}, "megatron+fp8")).step_ms < forecast(request(2, {}, "megatron")).step_ms);
}

TEST_CASE("software: profiles are named or read, and a wrong one is refused", "[planner]") {
  CHECK(software_profile("").sets.empty());
  CHECK(software_profile("slipstream").software.moved_bytes_factor == 1);
  CHECK(software_profile("megatron+fp8").software.fp8);
  for (const char* name : {"megatron_2021", "fsdp_eager", "maxtext", "paxml"})
    CHECK(software_profile(source_dir() + "/configs/software/" + name + ".toml").software.moved_bytes_factor > 0);
  CHECK_THROWS_WITH(software_profile("megatorn"), Catch::Contains("unknown software 'megatorn'. Use slipstream"));
}

TEST_CASE("software: buckets of Megatron-LM grow with the data ranks unless --set names their size", "[planner]") {
  const auto bucket_bytes = [](int ranks, std::vector<std::string> sets, const std::string& as) {
    sets.push_back("train.global_batch_size=64");
    return draw(request(ranks, sets, as)).config->overlap.bucket_size_bytes;
  };
  CHECK(bucket_bytes(8, {}, "megatron") == 160 << 20);
  CHECK(bucket_bytes(64, {}, "megatron") == 64 * 4'000'000);
  CHECK(bucket_bytes(64, {"parallel.tensor=2", "model.heads=24", "model.width=1536"}, "megatron") == 160 << 20);
  CHECK(bucket_bytes(64, {"overlap.bucket_size=25MiB"}, "megatron") == 25 << 20);
  CHECK(bucket_bytes(64, {}, "fsdp") == bucket_bytes(8, {}, "fsdp"));
}

// SPDX-License-Identifier: Apache-2.0
// Forecasts by two short plans against the rehearsal of the whole plan, and the properties of software profiles.

#include "trainer/planner/forecast/forecast.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/paths.h"
#include "tests/sample.h"
#include "tests/test.hpp"
#include "trainer/planner/forecast/extra_memory.h"
#include "trainer/planner/forecast/plan_facts.h"
#include "trainer/planner/forecast/software.h"
#include "trainer/planner/forecast/software_memory.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"

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

TEST_CASE("plan: the largest stage of a short plan is that of the whole step", "[planner]") {
  PlanRequest asked = request(64, {"model.layers=64", "parallel.pipeline=64", "train.global_batch_size=400"}, "");
  asked.proves = false;
  const Planned planned = make_plan(asked);
  REQUIRE(planned.steady.memory_bytes > 0);
  const Drawn drawn = draw(asked);
  const FinishedJob whole = build_drafted_job({.config = drawn.config, .machine = drawn.machine, .nccl = drawn.nccl});
  CHECK(largest_stage(planned).stage() == largest_stage(whole).stage());
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

/// Llama 3 on H100, from torchtitan's benchmarks/llama3_h100_202412_torchtitan.md, which has the reserved GiB of a
/// rank.
TEST_CASE("software: the memory of FSDP is within 10 % of published runs", "[planner]") {
  struct Row {
    const char* model;
    int ranks;
    std::vector<std::string> sets;
    double published_gib;
  };
  const std::vector<Row> rows = {
      {"llama_8b", 8, {"train.sequence_length=8192", "train.micro_batch_size=2", "train.recompute=none"}, 77.0},
      {"llama_8b", 128, {"train.sequence_length=8192", "train.micro_batch_size=2", "train.recompute=none"}, 62.0},
      {"llama_8b", 8, {"model.context=32768", "train.sequence_length=32768", "train.recompute=full"}, 83.9},
      {"llama_8b",
       8,
       {"model.context=65536", "train.sequence_length=65536", "parallel.context=2", "train.recompute=full"},
       84.2},
      {"llama_70b",
       256,
       {"train.sequence_length=8192", "parallel.tensor=8", "parallel.sequence_parallel=true", "parallel.pipeline=1",
        "train.micro_batch_size=16", "train.recompute=full"},
       67.6}};
  for (const Row& row : rows) {
    PlanRequest asked;
    asked.run_file = source_dir() + "/configs/runs/" + row.model + ".toml";
    asked.sets = {"zero.stage=3",           "zero.shard_size=0",         "pipeline.virtual_stages=1",
                  "pipeline.schedule=1f1b", "train.global_batch_size=0", "model.vocab_size=128256"};
    asked.sets.insert(asked.sets.end(), row.sets.begin(), row.sets.end());
    asked.ranks = row.ranks;
    asked.machine = source_dir() + "/configs/machines/h100_500w_x8.toml";
    asked.as = "fsdp";
    const Drawn drawn = draw(asked);
    const auto gib = [&](const std::string& as) {
      return static_cast<double>(sum_of(memory_of_software(drawn.config, software_profile(as).software))) / (1 << 30);
    };
    CAPTURE(row.model, row.ranks, row.published_gib, gib("fsdp"));
    CHECK(gib("fsdp") == Approx(row.published_gib).epsilon(0.1));
    CHECK(gib(source_dir() + "/configs/software/fsdp_compiled_loss.toml") < gib("fsdp"));
    CHECK(gib("slipstream") == 0);  // the plan has it
  }
}

TEST_CASE("software: each stage of a pipeline keeps its own part", "[planner]") {
  const auto of = [](const std::string& owner, std::vector<std::string> sets) {
    // With few logits, the first stage needs most.
    sets.insert(sets.end(), {"model.layers=16", "zero.stage=3", "train.global_batch_size=64", "model.vocab_size=1024"});
    const Drawn drawn = draw(request(16, sets, "fsdp"));
    for (const ExtraMemory& row : memory_of_software(drawn.config, drawn.machine.software))
      if (row.owner == owner) return row.size_bytes;
    return int64_t{0};
  };
  // One rank of 16 has a sixteenth of the states, whatever the layout; the first stage also has the embedding.
  CHECK(of("states", {"parallel.pipeline=4"}) > of("states", {}));
  // In 1F1B as many micro-batches as stages are in flight; in GPipe all 16 are.
  const int64_t one = of("activations", {"parallel.pipeline=4"});
  CHECK(of("activations", {"parallel.pipeline=4", "pipeline.schedule=gpipe"}) == 4 * one);
  CHECK(of("accumulated gradients", {}) == 0);
  CHECK(of("accumulated gradients", {"parallel.pipeline=4"}) == 2 * of("weights in use", {"parallel.pipeline=4"}));
}

TEST_CASE("plan: a schedule from a file that folds the parts has the memory of ZB-V", "[planner]") {
  const ScheduleShape shape{.stages = 2, .micro_batches = 4, .virtual_stages = 2};
  const std::string path =
      (std::filesystem::temp_directory_path() / ("folded." + std::to_string(getpid()) + ".csv")).string();
  std::ofstream(path) << schedule_csv(make_schedule(ScheduleKind::zb_v, shape));
  const auto memory = [&](std::vector<std::string> sets) {
    sets.insert(sets.end(), {"parallel.pipeline=2", "pipeline.virtual_stages=2", "pipeline.layers=[1, 4, 2, 1]",
                             "train.global_batch_size=8"});
    const Drawn drawn = draw(request(4, sets, "fsdp"));
    std::vector<int64_t> bytes;
    for (const ExtraMemory& row : memory_of_software(drawn.config, drawn.machine.software))
      if (row.owner == "states" || row.owner == "weights in use") bytes.push_back(row.size_bytes);
    for (const ZeroMemory& row : zero_memory({.config = drawn.config, .machine = drawn.machine, .nccl = drawn.nccl}))
      bytes.insert(bytes.end(), {row.planned_bytes, row.formula_bytes});
    return bytes;
  };
  const std::vector<int64_t> named = memory({"pipeline.schedule=zb_v"});
  CHECK(named.size() > 30);
  CHECK(memory({"pipeline.schedule_file=" + path}) == named);
  std::filesystem::remove(path);
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

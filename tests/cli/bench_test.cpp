// SPDX-License-Identifier: Apache-2.0
// Benchmarks of pipelines and of layers as a user starts them: what is in their tables, and that its numbers agree.

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

/// Rows of a table whose names hold no commas, by column; docs/reference/metrics.md has a row for every column.
std::vector<std::map<std::string, std::string>> table_of(const std::string& path) {
  std::istringstream lines(read(path));
  std::vector<std::vector<std::string>> cells;
  for (std::string line; std::getline(lines, line);) {
    cells.emplace_back();
    std::istringstream fields(line);
    for (std::string field; std::getline(fields, field, ',');) cells.back().push_back(field);
  }
  REQUIRE(!cells.empty());
  const std::string page = read(std::string(SOURCE_DIR) + "/docs/reference/metrics.md");
  for (const std::string& column : cells[0]) {
    CAPTURE(column);
    CHECK(page.find("`" + column + "`", page.find("## Tables of bench")) != std::string::npos);
  }
  std::vector<std::map<std::string, std::string>> rows;
  for (size_t i = 1; i < cells.size(); ++i) {
    REQUIRE(cells[i].size() == cells[0].size());
    for (size_t c = 0; c < cells[0].size(); ++c) rows.resize(i), rows[i - 1][cells[0][c]] = cells[i][c];
  }
  return rows;
}

constexpr int kStages = 2, kMicroBatches = 4;
const std::string kStagesOf4 =
    " --set device.kind=cpu --steps 1 --ratios 0.5 --set model.layers=4 --set "
    "train.micro_batch_size=1 --set train.global_batch_size=4 --csv ";

}  // namespace

TEST_CASE("bench overlap measures the four ways beside their bounds, in the columns that other programs read",
          "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder), csv = folder.path("table.csv");
  const Result result =
      on_ranks(2, "bench overlap " + run + " --steps 2 --ratios 0.5,1 --set device.kind=cpu --csv " + csv);
  INFO(result.text);
  REQUIRE(result.code == 0);
  CHECK(count(result.text, "noise floor: the run without communication against itself: ") == 2);
  const std::string text = read(csv);
  CHECK(text.rfind("implementation,model_size,d_model,num_layers,world_size,bucket_bytes,link,avg_step_time_ms,"
                   "speedup_vs_naive,compute_ms,comm_ms,exposed_ms,hidden_fraction,bound_ms,share_of_bound",
                   0) == 0);
  const auto rows = table_of(csv);
  for (const char* way : {"no_communication", "naive", "flat", "per_parameter", "bucketed"}) {
    CAPTURE(way);
    CHECK(std::count_if(rows.begin(), rows.end(), [&](const auto& row) { return row.at("implementation") == way; }) ==
          2);
  }
  for (const auto& row : rows) {
    const auto number = [&](const char* column) { return std::stod(row.at(column)); };
    INFO(row.at("implementation"));
    CHECK(number("world_size") == 2);
    CHECK(number("d_model") == 16);
    CHECK(number("num_layers") == 2);
    CHECK(number("avg_step_time_ms") > 0);
    CHECK(number("share_of_bound") == Approx(number("bound_ms") / number("avg_step_time_ms")).epsilon(0.02));
    CHECK((number("comm_ms") > 0) == (row.at("implementation").find("no_communication") == std::string::npos));
  }
}

TEST_CASE("bench pipeline measures every schedule beside the rehearsal and its ideal, and the noise",
          "[cli][pipeline]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder), csv = folder.path("table.csv");
  const Result result = on_ranks(kStages, "bench pipeline " + run + " --forward-ms 1" + kStagesOf4 + csv);
  INFO(result.text);
  REQUIRE(result.code == 0);
  CHECK(count(result.text, "noise floor: gpipe against itself: ") == 2);
  const auto rows = table_of(csv);
  REQUIRE(rows.size() == 8);
  const std::pair<const char*, double> schedules[] = {// what theory gives of bubbles
                                                      {"gpipe", 1.0 / kMicroBatches},
                                                      {"1f1b", 1.0 / kMicroBatches},
                                                      {"interleaved_1f1b", 0.5 / kMicroBatches},
                                                      {"zb_h1", 1.0 / 3 / kMicroBatches}};
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto number = [&](const char* column) { return std::stod(rows[i].at(column)); };
    const auto& [name, bubble] = schedules[i % 4];
    INFO(name);
    CHECK(rows[i].at("schedule") == name);
    CHECK(rows[i].at("virtual_stages") == (i % 4 == 2 ? "2" : "1"));
    CHECK(rows[i].at("compute_kind") == "paced");
    CHECK(number("hop_of_forward") == (i < 4 ? 0 : 0.5));
    // With hops it is the same: none is exposed.
    CHECK(std::abs(number("ideal_bound_ms") - 3 * kMicroBatches * (1 + bubble)) < 1e-3);
    CHECK(number("rehearsed_step_ms") > number("ideal_bound_ms") - 1e-3);
    CHECK(number("noise_floor") > 0);
    CHECK(rows[i].at("noise_floor") == rows[i / 4 * 4].at("noise_floor"));
  }
}

TEST_CASE("bench pipeline runs the kernels, and rehearses with what they took", "[cli][pipeline]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder), csv = folder.path("table.csv");
  const Result result = on_ranks(kStages, "bench pipeline " + run + " --compute real" + kStagesOf4 + csv);
  INFO(result.text);
  REQUIRE(result.code == 0);
  CHECK(contains(result.text, "2 stages that compute, 1 thread each"));
  const auto rows = table_of(csv);
  REQUIRE(rows.size() == 8);
  for (const auto& row : rows) {
    const auto number = [&](const char* column) { return std::stod(row.at(column)); };
    INFO(row.at("schedule") << " " << row.at("hop_of_forward"));
    CHECK(row.at("compute_kind") == "real");
    // A stage's own passes are part of the ideal step, and that is part of the rehearsed one.
    const double passes_ms =
        kMicroBatches * (number("measured_forward_ms") + number("measured_backward_ms") + number("measured_weight_ms"));
    CHECK(number("measured_forward_ms") > 0);
    CHECK((number("measured_weight_ms") > 0) == (row.at("schedule") == "zb_h1"));
    CHECK(number("ideal_bound_ms") > 0.5 * passes_ms);  // times in proportion to a median step
    CHECK(number("rehearsed_step_ms") > 0.999 * number("ideal_bound_ms"));
    CHECK(number("forward_ms") > 0);
  }
  check_refused(on_ranks(kStages, "bench pipeline " + run + " --compute real --forward-ms 1" + kStagesOf4 + csv), 2,
                {"--forward-ms 1", "--compute real", "Leave one of them out"});
  check_refused(call("bench pipeline " + run), 2, {"at least 2 ranks", "got 1", "mpirun -np 2"});
}

TEST_CASE("bench layers measures chunks and rings beside the plan and their ideal, and the noise", "[cli][tensor]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder), csv = folder.path("table.csv");
  const std::string quick = " --set device.kind=cpu --set train.global_batch_size=2 --steps 1 --layer-ms 0.5 --csv ";
  for (bool ring : {false, true}) {
    const Result result = on_ranks(
        2, "bench layers " + run +
               (ring ? " --set parallel.context=2 --ratios 0.5,40" : " --ratios 0.5,4 --chunks 1,2") + quick + csv);
    INFO(result.text);
    REQUIRE(result.code == 0);
    CHECK(count(result.text, ring ? "noise floor: ring of 2 against itself: "
                                  : "noise floor: tensor 2 in 1 chunk against itself: ") == 2);
    const auto rows = table_of(csv);
    REQUIRE(rows.size() == (ring ? 2 : 8));
    for (const auto& row : rows) {
      const auto number = [&](const char* column) { return std::stod(row.at(column)); };
      INFO(row.at("layout") << " " << row.at("ratio"));
      CHECK(number("ideal_bound_ms") == std::max(number("compute_ms"), number("comm_ms")));
      CHECK((number("ideal_bound_ms") > number("compute_ms")) == (number("ratio") > 1));
      CHECK(number("plan_bound_ms") > 0.999 * number("ideal_bound_ms"));
      CHECK(number("noise_floor") > 0);
    }
  }
}

TEST_CASE("what a benchmark refuses on all ranks is printed once", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder);
  const std::pair<const char*, const char*> refusals[] = {
      {"overlap", " --set parallel.pipeline=2"},
      {"overlap", " --zero 3 --set parallel.pipeline=2"},
      {"overlap", " --ablate"},
      {"layers", " --set parallel.tensor=1 --set parallel.pipeline=2"}};
  for (const auto& [benchmark, flags] : refusals) {
    const Result result =
        on_ranks(2, std::string("bench ") + benchmark + " " + run + " --set device.kind=cpu --steps 1" + flags);
    INFO(result.text);
    CHECK(result.code == 2);
    CHECK(count(result.text, "[bench]") == 1);
    CHECK(contains(result.text, "on all ranks: [bench]"));
  }
}

// SPDX-License-Identifier: Apache-2.0
// The parts of a report against closed forms, damaged run folders, and the size of a page of 10,000 steps.

#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <random>
#include <sstream>

#include "engine/base/check.h"
#include "engine/report/metrics.h"
#include "tests/cli/program.h"
#include "trainer/report/columns.h"
#include "trainer/report/measured.h"
#include "trainer/report/metrics_table.h"
#include "trainer/report/page.h"
#include "trainer/report/page_data.h"

using namespace slipstream;
using namespace slipstream::report;
using program::Folder;

namespace {

namespace fs = std::filesystem;

constexpr const char* kRunFile = R"(
[model]
family = "gpt2"
layers = 2
heads = 2
width = 32
context = 16
[data]
train = "text.txt"
tokenizer = "bytes"
[train]
steps = 8
micro_batch_size = 2
global_batch_size = 4
eval_interval = 4
eval_batches = 1
[checkpoint]
interval = 4
[trace]
steps = [4, 6]
)";

/// A folder with a real run of one rank in "run".
struct Trained : Folder {
  Trained() {
    write("run.toml", kRunFile);
    write("text.txt", program::english());
    const program::Result run =
        program::shell("cd " + path("") + " && " + slipstream_program() + " train run.toml --set output.dir=run");
    INFO(run.text);
    REQUIRE(run.code == 0);
  }
};

std::string metrics_lines(int64_t steps, int64_t spike) {
  std::string lines;
  for (int64_t step = 1; step <= steps; ++step) {
    StepMetrics m{.step = step,
                  .loss = 10.0 / std::sqrt(static_cast<double>(step)) + (step == spike ? 77 : 0),
                  .val_loss = {},
                  .learning_rate = 1e-3,
                  .grad_norm = 1.5,
                  .tokens = 4096,
                  .step_ms = 100 + static_cast<double>(step % 7),
                  .compute_ms = 80,
                  .comm_ms = 40,
                  .exposed_ms = 12,
                  .hidden_ms = 28,
                  .bubble_ms = 3,
                  .exposed_ms_max = 14,
                  .exposed_by = {},
                  .bound_ms = 95,
                  .mfu = {},
                  .params_hash = {}};
    for (int bucket = 0; bucket < 12; ++bucket)
      m.exposed_by.emplace_back(fmt::format("all_reduce.bucket{}", bucket), 1);
    lines += metrics_json(m) + "\n";
  }
  return lines;
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

}  // namespace

TEST_CASE("columns: every spike stays, and means of columns add up to the sum of all values", "[report]") {
  for (size_t count : {1, 2, 479, 480, 481, 959, 960, 10'007}) {
    std::vector<double> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = static_cast<double>(i % 97);
    const size_t spike = count / 3;
    values[spike] = 5000;
    std::vector<int64_t> steps(count);
    for (size_t i = 0; i < count; ++i) steps[i] = static_cast<int64_t>(i) + 1;
    const Json columns = columns_of(values), starts = column_starts(steps);
    const Json::Array& mean = columns.at("mean").as_array();
    REQUIRE(mean.size() == std::min<size_t>(count, kColumns));
    REQUIRE(starts.as_array().size() == mean.size());
    double sum = 0, largest = 0;
    for (size_t c = 0; c < mean.size(); ++c) {
      const int64_t begin = starts.as_array()[c].as_int();
      const int64_t end = c + 1 < mean.size() ? starts.as_array()[c + 1].as_int() : static_cast<int64_t>(count) + 1;
      REQUIRE(end > begin);
      sum += mean[c].as_double() * static_cast<double>(end - begin);
      largest = std::max(largest, count > kColumns ? columns.at("max").as_array()[c].as_double() : mean[c].as_double());
    }
    double exact = 0;
    for (double value : values) exact += value;
    CHECK(sum == Approx(exact).epsilon(1e-5));
    CHECK(largest == 5000);
  }
}

TEST_CASE("columns: values that are not finite are left out", "[report]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(columns_of({1, nan, HUGE_VAL, 2}).at("mean").dump() == "[1.0, null, null, 2.0]");
  CHECK(columns_of({}).at("mean").as_array().empty());
  std::vector<double> huge(1000, 1.7e308);
  CHECK(columns_of(huge).at("mean").as_array().front().as_double() == 1.7e308);
}

TEST_CASE("causes: tasks of one kind have one name", "[report]") {
  CHECK(kind_of_task("all_reduce.bucket12") == "all_reduce.bucket");
  CHECK(kind_of_task("recv.d_residual.part0/3") == "recv.d_residual");
  CHECK(kind_of_task("all_gather.layer3") == "all_gather.layer");
  CHECK(kind_of_task("recv.layer2.residual_in.part1/0") == "recv.layer.residual_in");
  CHECK(kind_of_task("7") == "7");
  CHECK(kind_of_task("") == "");
}

TEST_CASE("pages: no text of a run can end the script element", "[report]") {
  const std::string hostile = "</script><!--<script> \\\" \\u003c & \x01 \xff \xe2\x80\xa8 end\\";
  Json json = Json::object();
  json[hostile] = hostile;
  json["nested"] = Json::Array{Json(hostile), Json(1.5), Json("a,  b:  c")};
  const std::string safe = script_safe(json.dump());
  CHECK(safe.find('<') == std::string::npos);
  CHECK(safe.find('>') == std::string::npos);
  CHECK(Json::parse(safe) == Json::parse(json.dump()));
}

TEST_CASE("report: the page of a real run has its figures, and the folder stays otherwise unchanged", "[report]") {
  const Trained folder;
  RunFolder run = read_run(folder.path("run"), kMostSpans);
  const Json data = page_data(run);
  CHECK(run.missing.empty());
  // The figures are compared with the lines of the file, which the test reads by itself.
  std::vector<Json> lines;
  std::istringstream file(program::read(folder.path("run/metrics.jsonl")));
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  REQUIRE(lines.size() == 8);
  double step_ms = 0;
  for (size_t i = 2; i < lines.size(); ++i) step_ms += lines[i].at("step_ms").as_double() / 6;
  const auto figure = [&](std::string_view key) {
    for (const Json& one : data.at("figures").as_array())
      if (one.at("key").as_string() == key) return one.at("value").as_double();
    return -1.0;
  };
  CHECK(figure("loss") == lines.back().at("loss").as_double());
  CHECK(figure("val_loss") == lines.back().at("val_loss").as_double());
  CHECK(figure("step_ms") == Approx(step_ms).epsilon(1e-12));
  CHECK(figure("steps") == 8);
  // The predictions are the plan's times, and every kernel of the trace has one.
  double kernels_ns = 0, spans_ns = 0;
  for (const Json& row : data.at("kernels").as_array()) kernels_ns += row.as_array()[2].as_double();
  for (const TraceSpan& span : run.trace.ranks.at(0).spans)
    if (run.trace.names[span.name].kind == SpanName::Kind::kernel) spans_ns += static_cast<double>(span.duration_ns);
  CHECK(kernels_ns == Approx(spans_ns / static_cast<double>(run.trace.steps.size())).epsilon(1e-4));
  CHECK(run.trace.steps == std::vector<int64_t>{4, 5, 6});
  CHECK(data.at("tasks").as_array().size() > 10);
  CHECK(data.at("predicted_step_ns").as_int() > 0);
  // The differences from the defaults are those of the run file, and checkpoints are marks.
  std::vector<std::string> differing;
  for (const Json& row : data.at("settings").as_array())
    if (row.as_array()[1] != row.as_array()[2]) differing.push_back(row.as_array()[0].as_string());
  CHECK(std::find(differing.begin(), differing.end(), "model.width") != differing.end());
  CHECK(std::find(differing.begin(), differing.end(), "optimizer.beta1") == differing.end());
  std::vector<int64_t> checkpoints;
  for (const Mark& mark : run.marks)
    if (mark.kind == Mark::Kind::checkpoint) checkpoints.push_back(*mark.step);
  CHECK(checkpoints == std::vector<int64_t>{4, 8});

  const program::Result report = program::shell(slipstream_program() + " report " + folder.path("run"));
  CHECK(report.code == 0);
  CHECK(program::read(folder.path("run/report.html")).ends_with("</html>\n"));
}

TEST_CASE("report: refuses other folders, and lists the missing parts of an incomplete run", "[report]") {
  const Folder folder;
  const auto run = [&](const std::string& argument) {
    return program::shell(slipstream_program() + " report " + folder.path(argument));
  };
  CHECK(run("absent").code == 3);
  CHECK_THAT(run("absent").text, Catch::Contains("is not a folder. Give the output.dir of a run."));
  fs::create_directories(folder.path("empty"));
  CHECK(run("empty").code == 3);
  CHECK_THAT(run("empty").text, Catch::Contains("is not a run folder: it has neither run.json nor metrics.jsonl."));
  fs::create_directories(folder.path("partial"));
  folder.write("partial/metrics.jsonl", metrics_lines(3, 0) + "{\"step\": 4, \"los");
  const program::Result partial = run("partial");
  CHECK(partial.code == 0);
  CHECK_THAT(partial.text, Catch::Contains("metrics.jsonl ends with an incomplete line"));
  CHECK_THAT(partial.text, Catch::Contains("run.json is missing"));
  CHECK_THAT(partial.text, Catch::Contains("trace/ has no file"));
  folder.write("partial/plan.json", "{\"format\": 2}");
  folder.write("partial/config.resolved.toml", "[later]\nkey = \"a = b\"\n");
  const program::Result newer = run("partial");
  CHECK(newer.code == 0);
  CHECK_THAT(newer.text, Catch::Contains("plan.json is of another version"));
}

TEST_CASE("report: faults, relaunches and stragglers become marks", "[report]") {
  const Folder folder;
  fs::create_directories(folder.path("run"));
  folder.write("run/metrics.jsonl", metrics_lines(10, 0));
  folder.write("run/stragglers.jsonl", "{\"step\": 7, \"rank\": 1, \"cause\": \"link\", \"late_ms\": 2.5}\nnot json\n");
  folder.write("run.events.jsonl",
               "{\"event\": \"exit\", \"code\": 6, \"step\": 4, \"why\": \"<b>ended</b>\"}\n"
               "{\"event\": \"exit\", \"code\": 0, \"step\": 10, \"why\": \"ended\"}\n"
               "{\"event\": \"relaunch\", \"step\": 4, \"why\": \"start 2\"}\n");
  const RunFolder run = read_run(folder.path("run/"), kMostSpans);
  REQUIRE(run.marks.size() == 4);
  CHECK(run.marks[0].kind == Mark::Kind::fault);
  CHECK(run.marks[1].kind == Mark::Kind::relaunch);
  CHECK(run.marks[2].kind == Mark::Kind::straggler);
  CHECK(run.marks[2].text == "rank 1 is late by 2.5 ms: link");
  CHECK(run.marks[3].kind == Mark::Kind::other);
}

TEST_CASE("report: a damaged file removes its part of the page only", "[report]") {
  const Trained folder;
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path("run")))
    if (entry.is_regular_file() && entry.path().string().find("safetensors") == std::string::npos)
      names.push_back(entry.path().string());
  REQUIRE(names.size() >= 5);
  const auto seed = static_cast<uint32_t>(std::chrono::system_clock::now().time_since_epoch().count());
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const int rounds = test_everything() ? 2000 : 60;
  for (int round = 0; round < rounds; ++round) {
    const std::string& name = names[random() % names.size()];
    const std::string sound = program::read(name);
    std::string damaged = sound;
    if (damaged.empty()) continue;
    switch (random() % 4) {
      case 0:
        damaged.resize(random() % damaged.size());
        break;
      case 1:
        for (int i = 0; i < 5; ++i) damaged[random() % damaged.size()] = static_cast<char>(random());
        break;
      case 2:  // a digit becomes another number
        for (char& c : damaged)
          if (c >= '0' && c <= '9' && random() % 50 == 0) c = static_cast<char>('0' + random() % 10);
        break;
      default:
        damaged.insert(random() % damaged.size(), "999999999999999999");
    }
    std::ofstream(name, std::ios::binary) << damaged;
    INFO("round " << round << ", " << name);
    const Page page = make_page({folder.path("run")});
    CHECK(page.html.ends_with("</html>\n"));
    std::ofstream(name, std::ios::binary) << sound;
  }
}

TEST_CASE("report: 10,000 steps of 4 ranks take less than 2 MB", "[report]") {
  const Trained folder;
  const int64_t spike = 4321;
  folder.write("run/metrics.jsonl", metrics_lines(10'000, spike));
  const std::string trace = program::read(folder.path("run/trace/rank0000.json"));
  for (int rank = 1; rank < 4; ++rank) {
    std::string other = trace;
    for (size_t at; (at = other.find("\"pid\": 0")) != std::string::npos;)
      other[at + 7] = static_cast<char>('0' + rank);
    folder.write(fmt::format("run/trace/rank000{}.json", rank), other);
  }
  const double before = cpu_seconds();
  const Page page = make_page({folder.path("run")});
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("page of 10,000 steps and 4 ranks: %zu bytes, %.2f s of CPU time, at most %.0f MiB resident\n",
              page.html.size(), cpu_seconds() - before, static_cast<double>(usage.ru_maxrss) / 1024);
  CHECK(page.html.size() < 2'000'000);
  CHECK(page.html.find("77.1521") != std::string::npos);  // the spike: 10 / sqrt(4321) + 77
}

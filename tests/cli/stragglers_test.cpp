// SPDX-License-Identifier: Apache-2.0
// One rank of a real run is delayed: the run names it and the cause, ends, and has the bits of a run without delay.

#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

constexpr const char* kMore =
    "[comm.emulate]\nbandwidth = \"200MB/s\"\nlatency = \"10us\"\n[checkpoint]\ninterval = 0\n";

struct Run {
  Result result;
  std::vector<Json> stragglers;
  std::string bits;
};

Run delayed(const std::string& delay, const std::string& sets = "") {
  const Folder folder;
  const std::string file = run_file(folder, kMore);
  Run run;
  run.result = shell("SLIPSTREAM_DELAY=" + delay + " " + mpirun() + "-np 2 " + exe() + " train " + file +
                     " --set train.steps=30 --set train.log_interval=10 " + sets);
  std::ifstream records(folder.path("run/stragglers.jsonl"));
  for (std::string line; std::getline(records, line);) run.stragglers.push_back(Json::parse(line, "stragglers.jsonl"));
  std::ifstream metrics(folder.path("run/metrics.jsonl"));
  for (std::string line; std::getline(metrics, line);)
    if (const Json entry = Json::parse(line, "metrics.jsonl"); entry.find("params_hash"))
      run.bits = entry.at("params_hash").as_string();
  return run;
}

}  // namespace

TEST_CASE("A delayed rank is named with its cause, and the run has the same bits") {
  if (!has_mpirun()) return;
  const Run clean = delayed("");
  INFO(clean.result.text);
  REQUIRE(clean.result.code == 0);
  CHECK(clean.stragglers.empty());
  struct Row {
    const char* delay;
    int rank;
    const char* cause;
  };
  std::vector<Row> rows = {{"compute/attention_gradient@1#12:900", 1, "compute"},
                           {"link@0#12:900", 0, "link"},
                           {"input@1#12:900", 1, "input"},
                           {"host@0#12-20:100", 0, "host"}};
  if (test_everything())
    rows.insert(rows.end(), {{"compute@0#12-20:100", 0, "compute"}, {"link@1#12-20:100", 1, "link"}});
  for (const Row& row : rows) {
    const Run run = delayed(row.delay);
    CAPTURE(row.delay);
    INFO(run.result.text);
    REQUIRE(run.result.code == 0);
    REQUIRE(run.stragglers.size() == 1);
    CHECK(run.stragglers[0].at("rank").as_int() == row.rank);
    CHECK(run.stragglers[0].at("cause").as_string() == row.cause);
    check_documented(run.stragglers[0]);
    CHECK(contains(run.result.text, "[straggler] rank " + std::to_string(row.rank)));
    CHECK(run.bits == clean.bits);
  }
}

TEST_CASE("comm.straggler_threshold = 0 reports no straggler; a request for a delay that cannot be read is refused") {
  if (!has_mpirun()) return;
  const Run run = delayed("host@0#12:900", "--set comm.straggler_threshold=0");
  CHECK(run.result.code == 0);
  CHECK(run.stragglers.empty());
  CHECK(!contains(run.result.text, "[straggler]"));
  for (const char* wrong : {"host", "host@0", "host@x#1:5", "host@0#1:", "host@0#1-:5"}) {
    const Folder folder;
    const Result refused = shell(std::string("SLIPSTREAM_DELAY=") + wrong + " " + exe() + " train " + run_file(folder));
    CAPTURE(wrong, refused.text);
    CHECK(refused.code == 2);
    CHECK(contains(refused.text, "SLIPSTREAM_DELAY"));
  }
}

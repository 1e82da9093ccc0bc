// SPDX-License-Identifier: Apache-2.0
// calibrate, plan --against, --from and --import from the command line: what they print and what they refuse.

#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

constexpr const char* kTraced = "[trace]\nsteps = [2, 5]\n";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("calibrate writes a machine file that plans read", "[cli]") {
  Folder folder;
  const std::string run = run_file(folder), machine = folder.path("machine.toml");
  const Result made = call("calibrate " + run + " --ranks 2 --seconds 1 --out " + machine);
  INFO(made.text);
  REQUIRE(made.code == 0);
  const std::string text = read(machine);
  for (const char* row : {"\nverb all_reduce 2 ", "\nverb send 2 ", "\nlocal 1 update ", "\nrates 1 ", "\ncores "})
    CHECK(contains(text, row));
  const auto step_ms = [&](const std::string& more) {
    const Result planned = call("plan " + run + " --ranks 2 --json --machine " + machine + more);
    INFO(planned.text);
    REQUIRE(planned.code == 0);
    return Json::parse(planned.text).at("rehearsed").at("step_ms").as_double();
  };
  CHECK(step_ms("") > 0);
  // A link that moves the gradients in seconds makes the step as long as that.
  CHECK(step_ms(" --set comm.emulate.bandwidth=100kbit/s") > 1000);
  check_refused(call("plan " + run + " --ranks 3 --machine " + machine), 2, {"3 ranks", "1 node of 2 ranks"});
  folder.write("machine.toml", replaced(text, "\nverb all_reduce 2 ", "\nverb all_reduce 1 "));
  check_refused(call("plan " + run + " --ranks 2 --machine " + machine), 2, {"measured.times", "verb all_reduce 1"});
}

TEST_CASE("calibrate by a launcher measures the verbs between its ranks", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder), machine = folder.path("machine.toml");
  const Result made = on_ranks(2, "calibrate " + run + " --seconds 1 --out " + machine);
  INFO(made.text);
  REQUIRE(made.code == 0);
  CHECK(contains(read(machine), "by 2 processes"));
  CHECK(contains(read(machine), "\nverb all_gather 2 "));
  const Result planned = call("plan " + run + " --ranks 2 --json --set zero.stage=3 --machine " + machine);
  INFO(planned.text);
  REQUIRE(planned.code == 0);
  CHECK(Json::parse(planned.text).at("rehearsed").at("step_ms").as_double() > 0);
  check_refused(on_ranks(2, "calibrate " + run + " --ranks 2 --out " + machine), 2,
                {"--ranks 2 counts the ranks of one host, but a launcher started 2 processes. Leave it out."});
}

TEST_CASE("plan compares a run with its plan, and replays it with other settings", "[cli]") {
  Folder folder;
  const std::string file = run_file(folder, kTraced), run = folder.path("run");
  const Result trained = call("train " + file);
  INFO(trained.text);
  REQUIRE(trained.code == 0);
  const Result against = call("plan --json --against " + run);
  INFO(against.text);
  REQUIRE(against.code == 0);
  const Json result = Json::parse(against.text);
  double more_ms = result.at("after_last_task_ms").as_double();
  for (const Json& task : result.at("tasks").as_array())
    more_ms += task.at("measured_ms").as_double() - task.at("planned_ms").as_double();
  CHECK(std::abs(more_ms - result.at("measured_ms").as_double() + result.at("planned_ms").as_double()) < 1e-6);
  CHECK(result.at("named_share").as_double() > 0);  // of a step of 0.2 ms, the host may take the larger part
  CHECK(contains(call("plan --against " + run).text, "named tasks explain"));
  const Result same = call("plan --json --from " + run);
  INFO(same.text);
  REQUIRE(same.code == 0);
  CHECK(Json::parse(same.text).at("step_ms") == Json::parse(same.text).at("replayed_ms"));
  const Result slower = call("plan --json --from " + run +
                             " --ranks 2 --set comm.emulate.bandwidth=100kbit/s --set train.global_batch_size=4");
  INFO(slower.text);
  REQUIRE(slower.code == 0);
  CHECK(Json::parse(slower.text).at("step_ms").as_double() > 1000);
  for (const char* flag : {"--against ", "--from "}) {
    check_refused(call(std::string("plan ") + flag + folder.path("")), 3, {flag, "run.json is missing"});
    const std::string record = read(run + "/run.json"), plan = read(run + "/plan.json");
    folder.write("run/plan.json", replaced(plan, "\"format\": 1", "\"format\": 9"));
    check_refused(call(std::string("plan ") + flag + run), 3,
                  {"plan.json is of another version of the program, " + project_version() + ". Use that version."});
    folder.write("run/plan.json", plan.substr(0, plan.size() / 2));
    check_refused(call(std::string("plan ") + flag + run), 3, {"plan.json"});
    folder.write("run/plan.json", plan);
    folder.write("run/run.json", replaced(record, project_version(), "0.0.7"));
    if (std::string(flag) == "--from ")
      check_refused(call("plan --from " + run), 3, {"version 0.0.7", project_version()});
    folder.write("run/run.json", record);
    // A run that has not ended has written no trace, or only those of other ranks.
    const std::string trace = read(run + "/trace/rank0000.json");
    fs::rename(run + "/trace/rank0000.json", run + "/trace/rank0000.json.tmp");
    check_refused(call(std::string("plan ") + flag + run), 3, {"files of 0 of 1 rank", "Wait for its end"});
    fs::rename(run + "/trace/rank0000.json.tmp", run + "/trace/rank0000.json");
    folder.write("run/run.json", replaced(record, "\"ranks\": 1", "\"ranks\": 2"));
    check_refused(call(std::string("plan ") + flag + run), 3, {"files of 1 of 2 ranks"});
    folder.write("run/run.json", record);
    folder.write("run/trace/rank0000.json", trace.substr(0, trace.rfind("{\"ph\"") + 20));
    check_refused(call(std::string("plan ") + flag + run), 3, {"trace/rank0000.json", "Copy the folder again"});
    folder.write("run/trace/rank0000.json", trace);
    REQUIRE(call(std::string("plan ") + flag + run).code == 0);
  }
  fs::remove_all(run + "/trace");
  check_refused(call("plan --against " + run), 3, {"trace is missing", "trace.steps"});
}

TEST_CASE("plan forecasts a configuration of Megatron-LM", "[cli]") {
  Folder folder;
  const std::string script =
      folder.write("train.sh",
                   "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 256 "
                   "--num-attention-heads 4 \\\n --seq-length 128 --micro-batch-size 1 --bf16 "
                   "--global-batch-size 16\n");
  const std::string import = "plan --import megatron " + script;
  const Result made = call(import + " --machine " + source_dir() + "/configs/machines/h100x8.toml --json --write " +
                           folder.path("imported.toml"));
  INFO(made.text);
  REQUIRE(made.code == 0);
  CHECK(Json::parse(made.text).at("ranks").as_int() == 8);
  CHECK(Json::parse(made.text).at("step_ms").as_double() > 0);
  CHECK(contains(read(folder.path("imported.toml")), "global_batch_size = 16"));
  CHECK(contains(call(import).text, "needs --machine"));
  std::string longer = read(script);
  folder.write("train.sh", longer.insert(longer.size() - 1, " \\\n --num-experts 8"));
  check_refused(call(import), 2, {"train.sh:3: --num-experts = 8 is not supported"});
  check_refused(call("plan --import megatron " + folder.path("none.sh")), 3, {"none.sh"});
}

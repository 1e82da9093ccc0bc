// SPDX-License-Identifier: Apache-2.0
// Output of plan and check: layout, memory, schedule, forecasts and notes.

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>
#include <sstream>
#include <tuple>

#include "tests/cli/program.h"
#include "tests/sample.h"

using namespace slipstream;
using namespace slipstream::program;

TEST_CASE("plan and check print the plan", "[cli]") {
  Folder folder;
  const std::string run = run_file(folder);
  const Result json = call("plan " + run + " --ranks 2 --json");
  REQUIRE(json.code == 0);
  const Json plan = Json::parse(json.text);
  CHECK(plan.at("ranks").as_int() == 2);
  CHECK(plan.at("machine_source").as_string() == "this host");
  CHECK(plan.at("fits").as_bool());
  CHECK(plan.at("tasks").as_array().size() > 4);
  CHECK(plan.at("rehearsed").at("step_ms").as_double() > 0);
  int64_t total = 0;
  for (const auto& [owner, bytes] : plan.at("memory_bytes").as_object())
    if (owner != "total") total += bytes.as_int();
  CHECK(total == plan.at("memory_bytes").at("total").as_int());
  const Result check = call("check " + run + " --ranks 4 --set train.micro_batch_size=1");
  INFO(check.text);
  CHECK(check.code == 0);
  CHECK(contains(check.text, "none under"));
  const Json proof = Json::parse(call("check " + run + " --ranks 2 --json").text);
  CHECK(proof.at("machine_source").as_string() == "this host");
  const std::string laptop = source_dir() + "/configs/machines/laptop.toml";
  for (const char* verb : {"plan ", "check "}) {
    CHECK(Json::parse(call(verb + run + " --json --machine " + laptop).text).at("machine_source").as_string() ==
          "--machine");
    CHECK(Json::parse(call(verb + run + " --json --set device.machine=" + laptop).text)
              .at("machine_source")
              .as_string() == "device.machine");
  }
  CHECK(proof.at("holds").as_bool());
  CHECK(proof.at("deadlock").is_null());
  CHECK(proof.at("hazards").as_array().empty());
  CHECK(proof.at("plan_hash").as_string() == plan.at("plan_hash").as_string());
  check_refused(call("plan " + run + " --ranks 3"), 2, {"4", "2 x 3", "6"});
  // The saving of a split tied table is the difference between two plans.
  const std::string slow = "plan " + run + " --ranks 2 --set comm.emulate.bandwidth=100Mbit/s --machine " +
                           source_dir() + "/configs/machines/laptop.toml";
  const Result both = call(slow);
  const auto rehearsed = [](const std::string& text) {
    return Json::parse(text.substr(0, text.find("\n}\n") + 3)).at("rehearsed").at("exposed_ms").as_double();
  };
  const double apart = rehearsed(call(slow + " --json").text),
               together = rehearsed(call(slow + " --json --set overlap.split_tied_embedding=false").text);
  char wanted[2][64];
  std::snprintf(wanted[0], sizeof wanted[0], "rehearsed: %.2f ms exposed in a step of ", apart);
  std::snprintf(wanted[1], sizeof wanted[1], "overlap.split_tied_embedding = false %.2f in ", together);
  INFO(both.text);
  CHECK(contains(both.text, wanted[0]));
  CHECK(contains(both.text, wanted[1]));
}

TEST_CASE("plan prints the link that each group crosses, and the memory and time of recomputation", "[cli]") {
  Folder folder;
  const std::string plan = "plan " + run_file(folder) + " --ranks 16 --machine " + source_dir() +
                           "/configs/machines/h100x8.toml --set parallel.pipeline=2 --set train.global_batch_size=32";
  const Result inside = call(plan + " --set train.recompute=full"),
               across = call(plan + " --set parallel.order=dp-tp-cp-pp");
  INFO(inside.text << across.text);
  CHECK(contains(inside.text, "pipeline       2 ranks, inside a node:   339.93 GiB/s, such as ranks 0 1"));
  CHECK(contains(inside.text, "data           8 ranks, across nodes:    42.84 GiB/s, such as ranks 0 2 ... 14"));
  CHECK(contains(inside.text, "recompute: full saves "));
  CHECK(contains(across.text, "pipeline       2 ranks, across nodes:"));
  CHECK(contains(across.text, "data           8 ranks, inside a node:"));
  CHECK(!contains(across.text, "recompute:"));
  // plan, check and run agree on the plan.
  const std::string sums = "tensor groups communicate in every layer and cross nodes of ";
  CHECK(!contains(call(plan + " --set parallel.tensor=2").text, sums));
  const std::string apart = plan.substr(5) + " --set parallel.tensor=2 --set parallel.order=dp-pp-cp-tp";
  CHECK(contains(call("plan " + apart).text, "note:    " + sums + "8 ranks; use a parallel.tensor that divides 8"));
  CHECK(contains(call("check " + apart).text, "note:      " + sums));
  const Result json = call("check --json " + apart);
  CHECK(contains(Json::parse(json.text).at("notes").as_array().at(0).as_string(), sums));
  if (!has_mpirun()) return;
  std::string lone = read(source_dir() + "/configs/machines/laptop.toml");
  const size_t at = lone.find("ranks_per_node = ");
  REQUIRE(at != std::string::npos);
  lone.replace(at, lone.find('\n', at) - at, "ranks_per_node = 1");
  const Result run = on_ranks(2, "train " + run_file(folder) + " --set parallel.tensor=2 --set device.machine=" +
                                     folder.write("lone.toml", lone));
  INFO(run.text);
  CHECK(contains(run.text, "note: " + sums + "1 rank;"));
  check_refused(call("plan " + run_file(folder) + " --ranks 6 --set model.layers=4 --set parallel.pipeline=4"), 2,
                {"4", "6", "2x1x3x1, 1x1x3x2, 1x2x3x1, or start 4 or 8 ranks"});
}

TEST_CASE("plan, --dry-run and their files note the planner's decisions", "[cli]") {
  Folder folder;
  const std::string run = run_file(folder), plan = "plan " + run + " --ranks 2 --set train.micro_batch_size=1 ";
  const std::string once = "zero.stage 2: 2 micro-batches accumulate in whole gradients",
                    each = "zero.stage 2: 2 micro-batches are reduced one by one";
  const auto json = [](const std::string& text) { return Json::parse(text.substr(0, text.find("\n}\n") + 3)); };
  const Json fits = json(call(plan + "--set zero.stage=2 --json").text);
  REQUIRE(fits.at("notes").as_array().size() == 2);
  CHECK(contains(fits.at("notes").as_array()[0].as_string(), once));
  std::string small = read(source_dir() + "/configs/machines/laptop.toml");
  small.replace(small.find("memory = \""), 10, "memory = \"1400KiB\" #");
  const Result sharded =
      call(plan + "--set zero.stage=2 --set model.layers=24 --machine " + folder.write("small.toml", small));
  INFO(sharded.text);
  CHECK(contains(sharded.text, each));
  CHECK(contains(sharded.text, "whole gradients do not fit in 1.4 MiB"));
  CHECK(contains(
      sharded.text,
      "zero.stage 2: each layer is one bucket; overlap.bucket_size = 8.0 KiB applies only to the other parameters"));
  // In float32 these are tables of 256 and 16 rows of 16, and the last norm; the widths of ranks and alignment pad
  // them.
  const size_t at = sharded.text.find("stays whole: ") + 13;
  const double outside_KiB = std::stod(sharded.text.substr(at));
  CHECK(outside_KiB >= 4 * (256 + 16 + 2) * 16 / 1024.0 - 0.05);  // it is printed with one decimal
  CHECK(outside_KiB <= 1.1 * 4 * (256 + 16 + 2) * 16 / 1024.0);
  CHECK(!contains(call(plan + "--set zero.stage=3").text, "micro-batches accumulate"));
  const Result alone = call("plan " + run + " --set zero.stage=2");
  CHECK(contains(alone.text, "--set zero.stage=2 changes nothing"));  // one rank shares nothing
  CHECK(count(alone.text, "note:") == 1);
  const Result parts = call("train " + run + " --dry-run --set model.layers=5");
  CHECK(!contains(parts.text, "note:"));
  const std::string uneven = "plan " + run +
                             " --ranks 2 --set model.layers=5 --set parallel.pipeline=2 --set "
                             "pipeline.schedule=interleaved_1f1b --set pipeline.virtual_stages=2";
  check_refused(call(uneven), 2, {"model.layers = 5", "2 x 2 = 4 parts", "Use 4 or 8 layers", "pipeline.layers"});
  CHECK(call(uneven + " --set pipeline.layers=[1,2,1,1]").code == 0);
}

TEST_CASE("plan prints every pass of a schedule or the file that has them, and the link that groups are priced at",
          "[cli]") {
  Folder folder;
  const std::string run = run_file(folder);
  const std::string piped = "plan " + run +
                            " --ranks 4 --set model.layers=5 --set parallel.pipeline=4 --set train.micro_batch_size=1 "
                            "--set train.global_batch_size=";
  const Result table = call(piped + "16 --set comm.emulate.bandwidth=1Gbit/s");
  INFO(table.text);
  // The rows are those of the first stage of 1F1B over four stages, and of the last one, where a forward pass is the
  // shortest.
  for (int m = 0; m < 16; ++m)
    for (const char* pass : {" F", " B"})
      CHECK(count(table.text + " ", pass + std::to_string(m) + " ") +
                count(table.text, pass + std::to_string(m) + "\n") ==
            4);
  CHECK(contains(table.text, "comm.emulate:    119.2"));
  CHECK(!contains(table.text, "inside a node:"));
  const Result long_one = call(piped + "17 --set comm.emulate.bandwidth=1000Gbit/s");
  INFO(long_one.text);
  CHECK(count(long_one.text, "\nstage ") == 4);
  CHECK(count(long_one.text, " ... ") >= 4);
  for (const char* pass : {" F0 ", " B16"}) CHECK(count(long_one.text, pass) == 4);
  CHECK(!contains(long_one.text, " F8 "));
  CHECK(contains(long_one.text, " columns the first and the last 24; --schedule-csv FILE writes the whole schedule"));
}

TEST_CASE("plan uses the device of the machine file unless the run file sets one", "[cli]") {
  Folder folder;
  const std::string plan = "plan " + run_file(folder) + " --ranks 2 --machine " + source_dir() + "/configs/machines/";
  const std::string on_gpus = "NCCL buffers", on_cpus = "on a CPU an update takes cores from compute";
  for (const auto& [machine, sets, gpus] : std::initializer_list<std::tuple<std::string, std::string, bool>>{
           {"h100x8.toml", "", true},
           {"h100x8.toml", " --set comm.backend=mpi", false},
           {"h100x8.toml", " --set device.kind=cpu", false},
           {"laptop.toml", "", false},
           {"laptop.toml", " --set device.kind=cuda", true}}) {
    const Result result = call(plan + machine + sets);
    INFO(machine << sets << "\n" << result.text);
    CHECK(result.code == 0);
    CHECK(contains(result.text, on_gpus) == gpus);
    CHECK(contains(result.text, on_cpus) == !gpus);
    CHECK(contains(result.text, "engines:\n") == gpus);
    const Json json = Json::parse(call(plan + machine + sets + " --json").text);
    REQUIRE((json.find("engines") != nullptr) == gpus);
    if (gpus) CHECK(json.at("engines").at("reduce").at("engine").as_string() == "sm");
  }
}

TEST_CASE("plan names the channel that exposes most; its suggestions are as fast as printed", "[cli]") {
  Folder folder;
  const std::string plan = "plan " + run_file(folder) +
                           " --ranks 2 --set train.dtype=bfloat16 --set comm.emulate.bandwidth=100Mbit/s --machine " +
                           source_dir() + "/configs/machines/laptop.toml";
  const Result text = call(plan);
  INFO(text.text);
  REQUIRE(text.code == 0);
  const Json now = Json::parse(call(plan + " --json").text);
  // A task cannot expose more than its channel, nor a channel more than the step.
  const size_t exposed = text.text.find("\nexposed: ");
  REQUIRE(exposed != std::string::npos);
  const std::string rest = text.text.substr(exposed);
  const double channel_ms = number_after(rest, "exposed: "), busy_ms = number_after(rest, " of "),
               task_ms = number_after(rest, "the longest wait is ");
  CHECK(contains(rest, " ms on channel reduce; "));
  CHECK(task_ms > 0);
  CHECK(task_ms <= channel_ms);
  CHECK(channel_ms <= busy_ms);
  CHECK(channel_ms <= now.at("rehearsed").at("exposed_ms").as_double() + 0.005);
  int tried = 0;
  for (size_t at = 0; (at = rest.find("try:     --set ", at)) != std::string::npos; ++tried) {
    at += 9;
    const std::string line = rest.substr(at, rest.find('\n', at) - at), set = line.substr(0, line.find(": "));
    INFO(line);
    const Json other = Json::parse(call(plan + " --json " + set).text);
    const double step_ms = other.at("rehearsed").at("step_ms").as_double();
    char wanted[128];
    std::snprintf(wanted, sizeof wanted, ": rehearsed %.2f ms, %.2f ms exposed", step_ms,
                  other.at("rehearsed").at("exposed_ms").as_double());
    CHECK(contains(line, wanted));
    CHECK(step_ms / other.at("global_batch_size").as_double() <
          now.at("rehearsed").at("step_ms").as_double() / now.at("global_batch_size").as_double());
  }
  CHECK(tried >= 1);
  CHECK(tried <= 3);
}

TEST_CASE("plan prints the bytes of a bfloat16 model's gradients for both types", "[cli]") {
  Folder folder;
  const std::string plan = "plan " + run_file(folder) + " --ranks 2 --set overlap.split_tied_embedding=false";
  const std::string note = "gradients of a bfloat16 model travel as comm.grad_dtype = ";
  CHECK(!contains(call(plan).text, note));
  CHECK(!contains(call(plan + " --set train.dtype=bfloat16 --set comm.quantize=int8").text, note));
  const auto sent = [&](const std::string& dtype) {
    return Json::parse(call(plan + " --json --set train.dtype=bfloat16 --set comm.grad_dtype=" + dtype).text)
        .at("wire_bytes")
        .at("sent")
        .as_double();
  };
  const std::string rounded = note + "\"bfloat16\", ", exact = note + "\"float32\", ";
  // Printed with one decimal digit. On GPUs the sums are exchanged, which sends as many bytes.
  for (const char* more : {"", " --set zero.stage=1", " --set device.kind=cuda"}) {
    const std::string with = plan + " --set train.dtype=bfloat16" + more;
    const Result by_default = call(with), asked = call(with + " --set comm.grad_dtype=float32");
    INFO(by_default.text << asked.text);
    REQUIRE(contains(by_default.text, rounded));
    REQUIRE(contains(asked.text, exact));
    const double two_bytes = bytes_after(by_default.text, rounded), four_bytes = bytes_after(asked.text, exact);
    CHECK(std::abs(four_bytes - 2 * two_bytes) <= 0.15 * 1024);
    CHECK(std::abs(bytes_after(by_default.text, "\"float32\" would send ") - four_bytes) <= 0.15 * 1024);
    CHECK(std::abs(bytes_after(asked.text, "\"bfloat16\" would send ") - two_bytes) <= 0.15 * 1024);
    if (*more) continue;
    CHECK(std::abs(two_bytes - sent("bfloat16")) <= 0.05 * 1024);
    CHECK(std::abs(four_bytes - sent("float32")) <= 0.05 * 1024);
  }
  CHECK(contains(on_ranks(2, "train " + run_file(folder) + " --set train.dtype=bfloat16 --set train.steps=1").text,
                 "note: " + rounded));
}

TEST_CASE("plan, check and --dry-run print the singular for 1", "[cli]") {
  Folder folder;
  const std::string run = run_file(folder);
  for (const std::string& command : {std::string("plan "), std::string("check "), std::string("train --dry-run ")}) {
    const Result result = call(command + run + " --set train.global_batch_size=2");
    INFO(result.text);
    CHECK(result.code == 0);
    for (const char* noun : {"ranks", "tasks", "buckets", "micro-batches", "waits", "spine items"})
      CHECK(!contains(result.text, std::string(" 1 ") + noun));
  }
}

TEST_CASE("plan --search prints the layouts in order and writes run files that plan to the same step", "[cli]") {
  Folder folder;
  const std::string search =
      "plan " + run_file(folder) + " --ranks 4 --machine " + source_dir() +
      "/configs/machines/h100x8.toml --set train.global_batch_size=16 --search --seconds 0 --over "
      "parallel.tensor=1 --over parallel.pipeline=1,2 --over train.micro_batch_size=2 --over "
      "train.recompute=none --over zero.stage=0,1 --over pipeline.schedule=1f1b --rows 2";
  const Result json = call(search + " --json --write " + folder.path("found"));
  INFO(json.text);
  REQUIRE(json.code == 0);
  const Json found = Json::parse(json.text);
  CHECK(found.at("certain").as_bool());
  const auto& rows = found.at("rows").as_array();
  REQUIRE(rows.size() == 2);
  CHECK(rows.at(0).at("step_ms").as_double() <= rows.at(1).at("step_ms").as_double());
  CHECK(contains(rows.at(1).at("reason").as_string(), "ms"));
  const Result planned =
      call("plan " + folder.path("found/1.toml") + " --ranks 4 --json --set device.graph=false --machine " +
           source_dir() + "/configs/machines/h100x8.toml");
  INFO(planned.text);
  REQUIRE(planned.code == 0);
  // A plan may move the update to a stream of its own, and plans products beside transfers for fewer multiprocessors.
  CHECK(Json::parse(planned.text).at("rehearsed").at("step_ms").as_double() ==
        Approx(rows.at(0).at("step_ms").as_double()).epsilon(0.03));
  const Result text = call(search);
  CHECK(contains(text.text, "No other of these layouts has a shorter rehearsed step."));
  CHECK(contains(text.text, "try:     --set parallel.tensor=1"));
  check_refused(call(search + " --over zero.stge=1"), 2, {"zero.stge", "zero.stage"});
  check_refused(call("plan " + run_file(folder) + " --need mfu=0.5 --vary bandwdth"), 2, {"bandwdth", "bandwidth"});
  const Result need = call("plan " + run_file(folder) + " --ranks 2 --need step_ms=100000 --vary micro_batch");
  INFO(need.text);
  CHECK(contains(need.text, "answer:  train.micro_batch_size = 1 reaches"));
}

TEST_CASE("a long step is planned with few micro-batches, and its totals are those of the whole plan", "[cli]") {
  Folder folder;
  const std::string plan = "plan " + run_file(folder) + " --ranks 4 --json --machine " + source_dir() +
                           "/configs/machines/h100x8.toml --set model.layers=8 --set train.micro_batch_size=1 --set "
                           "parallel.pipeline=2 --set train.global_batch_size=8000";
  const Json few = Json::parse(call(plan).text);
  CHECK(few.at("micro_batches").as_int() == 4000);
  CHECK(few.at("planned_micro_batches").as_int() == 6);
  CHECK(few.at("plan_hash").is_null());
  if (!test_everything()) return;  // the whole plan takes seconds
  const Json whole = Json::parse(call(plan + " --whole").text);
  // The two plans may place the update on different streams.
  for (const char* owner : {"parameters", "gradients", "optimizer", "activations"})
    CHECK(few.at("memory_bytes").at(owner).as_int() == whole.at("memory_bytes").at(owner).as_int());
  CHECK(static_cast<double>(few.at("memory_bytes").at("total").as_int()) ==
        Approx(static_cast<double>(whole.at("memory_bytes").at("total").as_int())).epsilon(0.05));
  CHECK(few.at("wire_bytes").at("sent").as_int() == whole.at("wire_bytes").at("sent").as_int());
  CHECK(few.at("rehearsed").at("step_ms").as_double() ==
        Approx(whole.at("rehearsed").at("step_ms").as_double()).epsilon(0.01));
}

TEST_CASE("plan --trace and --html draw the rehearsed steps", "[cli]") {
  Folder folder;
  const std::string plan = "plan " + run_file(folder) + " --ranks 4 --set parallel.pipeline=2 --machine " +
                           source_dir() + "/configs/machines/laptop.toml";
  const Result drawn = call(plan + " --json --trace " + folder.path("drawn") + " --html " + folder.path("page.html"));
  REQUIRE(drawn.code == 0);
  const Json json = Json::parse(drawn.text);  // the output contains nothing else
  // The first rank of each of the two stages has a file; a step begins the rehearsed time after the one before.
  size_t waits = 0;
  for (const char* rank : {"rank0000.json", "rank0001.json"}) {
    const Json trace = Json::parse(read(folder.path("drawn/trace/") + rank));
    std::map<int64_t, double> begin_us;
    for (const Json& event : trace.at("traceEvents").as_array()) {
      if (event.at("ph").as_string() != "X") continue;
      waits += event.at("cat").as_string() == "wait";
      if (event.at("tid").as_int() != 0 || event.at("cat").as_string() == "wait") continue;
      double& begin = begin_us.try_emplace(event.at("args").at("step").as_int(), 1e300).first->second;
      begin = std::min(begin, event.at("ts").as_double());
    }
    CHECK(begin_us.size() == 3);
    if (std::string(rank) == "rank0000.json")
      CHECK((begin_us.at(3) - begin_us.at(2)) / 1e3 ==
            Approx(json.at("rehearsed").at("step_ms").as_double()).epsilon(1e-6));
  }
  CHECK(waits > 0);
  const std::string page = read(folder.path("page.html"));
  CHECK(contains(page, "\"rehearsed\"") == false);  // the page does not contain the record itself
  CHECK(contains(page, "All times are virtual"));
  CHECK(contains(page, "\"timeline\""));
  CHECK(contains(page, "\"tasks\":[]"));  // nothing was measured that could differ
  // A folder of a run keeps its timeline.
  std::filesystem::create_directories(folder.path("taken"));
  std::ofstream(folder.path("taken/run.json")) << "{}";
  check_refused(call(plan + " --trace " + folder.path("taken")), 2, {"taken", "holds a run"});
}

TEST_CASE("plan prints what the step means for the run", "[cli]") {
  Folder folder;
  const std::string plan = "plan " + run_file(folder) +
                           " --ranks 4 --set train.steps=86400 --set train.micro_batch_size=1 --machine " +
                           source_dir() + "/configs/machines/h100x8.toml";
  const Json json = Json::parse(call(plan + " --json").text);
  const double step_ms = json.at("rehearsed").at("step_ms").as_double();
  CHECK(json.at("run").at("days").as_double() == Approx(step_ms / 1e3));  // of as many steps as a day has seconds
  CHECK(json.at("run").at("rank_hours").as_double() == Approx(step_ms / 1e3 * 24 * 4));
  CHECK(json.at("rehearsed").at("step_ms_low").as_double() < step_ms);
  CHECK(json.at("rehearsed").at("step_ms_high").as_double() > step_ms);
  CHECK(json.at("rehearsed").at("mfu").as_double() > 0);
  const std::string text = call(plan).text;
  CHECK(contains(text, "GPU-hours; MFU "));
  CHECK(contains(text, "80 % interval of a step "));
}

TEST_CASE("states of a rank count tensor and pipeline ranks", "[cli]") {
  Folder folder;
  const std::string plan = "plan " + run_file(folder) + " --ranks 8 --machine " + source_dir() +
                           "/configs/machines/laptop.toml --set model.layers=8 --set model.heads=4 --set "
                           "model.width=256 --set train.global_batch_size=0 --set ";
  const auto states = [&](const std::string& layout) {
    const std::string text = call(plan + layout).text;
    const size_t table = text.find("states of a rank");
    REQUIRE(table != std::string::npos);
    return bytes_after(text.substr(table), "\n  0 ");
  };
  const double whole = states("zero.stage=0");
  const double tensor = states("parallel.tensor=4"), piped = states("parallel.pipeline=4 --set parallel.tensor=2");
  CHECK(tensor >= whole / 4);  // norms and positions are whole
  CHECK(tensor < whole / 3);
  CHECK(piped < whole / 4);
  CHECK(piped > whole / 8);  // the largest stage has an embedding besides its layers
}

TEST_CASE("an argument of --set that changes nothing says so", "[cli]") {
  Folder folder;
  const std::string plan = "plan " + run_file(folder) + " --ranks 2 --machine " + source_dir() +
                           "/configs/machines/laptop.toml --json --set overlap.bucket_size=16MiB --set ";
  const auto notes = [&](const std::string& set) {
    std::string all;
    const Json json = Json::parse(call(plan + set).text);
    for (const Json& note : json.at("notes").as_array()) all += note.as_string() + "\n";
    return all;
  };
  CHECK(contains(notes("overlap.bucket_size=32MiB"),
                 "--set overlap.bucket_size=32MiB changes nothing: the plan is that of overlap.bucket_size = "
                 "\"16MiB\", because both give "));
  CHECK(contains(notes("overlap.bucket_size=16MiB"), "overlap.bucket_size is \"16MiB\" without it"));
  CHECK_FALSE(contains(notes("overlap.grad_reduce=per_parameter"), "grad_reduce=per_parameter changes nothing"));
  CHECK_FALSE(contains(notes("train.seed=3"), "train.seed"));  // the seed changes the training, not its plan
}

// SPDX-License-Identifier: Apache-2.0
// Runs of the built program whose ranks differ: stages of a pipeline, parts of sequences, parts of layers.

#include <set>
#include <sstream>

#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

TEST_CASE("a pipeline trains the weights of one rank, and they generate the same text", "[cli][pipeline]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder) + " --set data.tokenizer=chars --set train.micro_batch_size=1",
                    dir = folder.path("run");
  REQUIRE(call("train " + run).code == 0);
  const std::string hash = metrics(dir).back().at("params_hash").as_string();
  const std::string text = call("generate " + dir + " --prompt the --tokens 20 --seed 3").text;
  const Result piped = on_ranks(2, "train " + run + " --set parallel.pipeline=2");
  INFO(piped.text);
  REQUIRE(piped.code == 0);
  CHECK(contains(piped.text, "over 2 stages of 1 + 1 layers, 4 micro-batches"));
  check_complete(dir, 6);
  CHECK(metrics(dir).back().at("params_hash").as_string() == hash);
  CHECK(metrics(dir).back().at("bubble_ms").as_double() > 0);  // a stage waits for the other at both ends of a step
  CHECK(contains(piped.text, ", bubble "));
  CHECK(call("generate " + dir + " --prompt the --tokens 20 --seed 3").text == text);
}

TEST_CASE("a schedule that was written to a file is read back, and trains the weights of one rank", "[cli][pipeline]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string csv = folder.path("schedule.csv"), dir = folder.path("run");
  const std::string run = run_file(folder) + " --set train.micro_batch_size=1 --set model.layers=4";
  REQUIRE(call("train " + run).code == 0);
  const std::string hash = metrics(dir).back().at("params_hash").as_string();
  const std::string slow =
      " --set comm.emulate.bandwidth=10Mbit/s";  // with slow transfers, more micro-batches are in flight
  for (const auto& [kind, parts] : std::vector<std::pair<std::string, int>>{
           {"gpipe", 1}, {"1f1b", 1}, {"interleaved_1f1b", 2}, {"zb_h1", 1}, {"zb_v", 2}}) {
    const std::string piped = run + " --set parallel.pipeline=2 --set pipeline.virtual_stages=" + std::to_string(parts);
    const std::string plan = "plan " + piped + slow + " --ranks 2 --schedule-csv " + csv + " --set pipeline.schedule",
                      file = "_file=" + csv;
    const Result made = call(plan + "=" + kind);
    INFO(kind << "\n" << made.text);
    REQUIRE(made.code == 0);
    CHECK(contains(made.text, "with more micro-batches in flight") == (kind == "1f1b" || kind == "zb_h1"));
    const std::string written = read(csv);
    const Result again = call(plan + file);
    INFO(again.text);
    REQUIRE(again.code == 0);
    CHECK(read(csv) == written);
    CHECK(contains(again.text, "pipeline: " + csv + " over 2 stages" + (parts > 1 ? " x 2" : "") + " of "));
    CHECK(!contains(again.text, "with more micro-batches in flight"));  // the file fixes the number
    const Result trained = on_ranks(2, "train " + piped + " --set pipeline.schedule" + file);
    INFO(trained.text);
    REQUIRE(trained.code == 0);
    CHECK(metrics(dir).back().at("params_hash").as_string() == hash);
  }
}

TEST_CASE("a schedule file with a pass too few or too many is refused by the pass", "[cli][pipeline]") {
  Folder folder;
  const std::string run = run_file(folder) + " --ranks 2 --set parallel.pipeline=2 --set train.micro_batch_size=1",
                    csv = folder.path("schedule.csv"), own = " --set pipeline.schedule_file=" + csv;
  REQUIRE(call("plan " + run + " --set pipeline.schedule=zb_h1 --schedule-csv " + csv).code == 0);
  const std::string lines = read(csv);
  folder.write("schedule.csv", lines.substr(0, lines.rfind("\n1,") + 1));
  check_refused(call("plan " + run + own), 2, {"stage 1: weight of micro-batch 3 is missing", csv});
  folder.write("schedule.csv", lines + "0,99,F,0,0\n");
  check_refused(call("check " + run + own), 2, {"stage 0: forward of micro-batch 0 appears twice", csv});
}

TEST_CASE("a plan separates the bubble of a pipeline from exposed communication", "[cli][pipeline]") {
  Folder folder;
  const std::string plan =
      "plan " + run_file(folder) + " --ranks 2 --set train.micro_batch_size=1 --set parallel.pipeline=";
  const Json alone = Json::parse(call(plan + "1 --json").text).at("rehearsed"),
             piped = Json::parse(call(plan + "2 --json").text).at("rehearsed");
  CHECK(alone.at("bubble_ms").as_double() == 0);
  CHECK(piped.at("bubble_ms").as_double() > 0);
  CHECK(piped.at("exposed_ms").as_double() < piped.at("comm_ms").as_double());
  const std::string text = call(plan + "2").text;
  INFO(text);
  CHECK(contains(text, "stage 1: "));
  CHECK(contains(text, "; rehearsed: bubble "));
}

TEST_CASE(
    "70 billion parameters on 512 ranks over three axes: planned, proved and rehearsed here, with the memory of every "
    "stage",
    "[cli][pipeline]") {
  const std::string plan = "plan " + source_dir() + "/configs/runs/llama_70b.toml --ranks 512 --machine " +
                           source_dir() +
                           "/configs/machines/h100x8.toml"
                           " --set parallel.tensor=8 --set parallel.pipeline=8 --set train.recompute=full"
                           " --set device.kind=cpu";  // for GPUs, three jobs would be compared
  if (!test_everything()) {  // the sample plans the shipped run file on 512 ranks (cli_command_line)
    std::printf("  COUNTED 0 of 2 schedules of 512 ranks; scripts/test.sh --all plans both\n");
    return;
  }
  for (const std::string& schedule : {std::string("1f1b --set pipeline.virtual_stages=1"),
                                      std::string("interleaved_1f1b --set pipeline.virtual_stages=2")}) {
    const bool in_chunks = contains(schedule, "interleaved");
    const Result result = shell(exe() + " " + plan + " --set pipeline.schedule=" + schedule, 240);
    INFO(result.text);
    CHECK(result.code == 0);
    CHECK(contains(result.text, "data 8 x tensor 8 x pipeline 8 x context 1"));
    CHECK(count(result.text,
                in_chunks ? " alive in 2 chunks together; rehearsed: bubble " : " alive; rehearsed: bubble ") == 8);
    CHECK(count(result.text, "\nstage ") == 8);
    CHECK(contains(result.text, "rehearsed step: "));
  }
}

TEST_CASE("one --set removes an axis from a run file: notes name the settings without effect, the other axes remain",
          "[cli][pipeline]") {
  for (const auto& [set, notes] : std::initializer_list<std::pair<std::string, std::vector<std::string>>>{
           {"parallel.pipeline=1",
            {"pipeline.schedule = \"interleaved_1f1b\" has no effect with parallel.pipeline = 1",
             "pipeline.virtual_stages = 2 has no effect with parallel.pipeline = 1"}},
           {"parallel.tensor=1", {"parallel.sequence_parallel = true has no effect with parallel.tensor = 1"}}}) {
    // Notes do not depend on the number of layers.
    const Result plan =
        call("plan " + source_dir() + "/configs/runs/llama_70b.toml --json --ranks 64 --machine " + source_dir() +
             "/configs/machines/h100x8.toml --set device.kind=cpu --set model.layers=16 --set "
             "train.sequence_length=512 --set " +
             set);
    INFO(plan.text);
    const Json json = Json::parse(plan.text.substr(0, plan.text.find("\n}\n") + 3));
    std::vector<std::string> printed;
    for (size_t i = 0; i < notes.size(); ++i) printed.push_back(json.at("notes").as_array().at(i).as_string());
    CHECK(printed == notes);
  }
  Folder folder;
  const std::string run = run_file(folder), dir = folder.path("run");
  REQUIRE(call("train " + run).code == 0);
  const auto plan_hash = [&] { return Json::parse(read(dir + "/run.json")).at("plan_hash").as_string(); };
  const std::string hash = metrics(dir).back().at("params_hash").as_string(), plan = plan_hash();
  const Result trained = call("train " + run +
                              " --set parallel.sequence_parallel=true --set pipeline.schedule=zb_h1 --set "
                              "pipeline.layers=[1,0,1] --set overlap.align_grad_reduce=true");
  INFO(trained.text);
  REQUIRE(trained.code == 0);
  CHECK(metrics(dir).back().at("params_hash").as_string() == hash);
  CHECK(plan_hash() == plan);
  CHECK(contains(trained.text, "note: pipeline.schedule = \"zb_h1\" has no effect with parallel.pipeline = 1"));
  CHECK(count(trained.text, "has no effect with parallel.") == 4);
  CHECK(contains(read(dir + "/run.json"), "has no effect with parallel.tensor = 1"));
}

TEST_CASE("impossible pipelines are refused with their numbers", "[cli][pipeline]") {
  Folder folder;
  const std::string run = "check " + run_file(folder);
  struct Row {
    std::string more;
    std::vector<std::string> parts;
  };
  const std::vector<Row> rows = {
      {" --ranks 3 --set parallel.pipeline=3", {"3 x 1 = 3 stages exceeds model.layers = 2"}},
      {" --ranks 3 --set parallel.pipeline=2", {"pipeline 2", "2 ranks do not divide the 3"}},
      {" --ranks 2 --set parallel.pipeline=2 --set model.layers=4 --set pipeline.virtual_stages=2 --set "
       "pipeline.schedule=interleaved_1f1b "
       "--set train.micro_batch_size=4",
       {"needs a multiple of 2 micro-batches per step, got 1", "has 2"}},
      {" --ranks 2 --set parallel.pipeline=2 --set model.layers=4 --set pipeline.virtual_stages=3 --set "
       "pipeline.schedule=interleaved_1f1b",
       {"2 x 3 = 6 stages exceeds model.layers = 4"}},
      {" --ranks 4 --set parallel.pipeline=2 --set overlap.align_grad_reduce=true --set zero.stage=2",
       {"overlap.align_grad_reduce = true", "zero.stage = 2", "Use false"}},
      {" --ranks 2 --set comm.emulate.bandwidth=1B/s --set model.width=4096 --set model.heads=16",
       {"that a rank sends in a step need", "days at 1 B/s", "Raise comm.emulate.bandwidth"}},
      {" --ranks 2 --set parallel.pipeline=2 --set comm.emulate.bandwidth=1B/s --set model.width=4096 --set "
       "model.heads=16 --set "
       "model.layers=8",
       {"days at 1 B/s", "Raise comm.emulate.bandwidth"}},
      {" --ranks 2 --set parallel.pipeline=2 --set pipeline.schedule_file=/no/such",
       {"pipeline.schedule_file = /no/such"}}};
  for (const Row& row : rows) {
    CAPTURE(row.more);
    check_refused(call(run + row.more), 2, row.parts);
  }
  const Result few =
      call("plan " + run_file(folder) + " --ranks 2 --set parallel.pipeline=2 --set train.micro_batch_size=4");
  INFO(few.text);
  CHECK(few.code == 0);
  CHECK(contains(few.text, "1 micro-batch: the busiest stage idles "));  // what the few micro-batches cost
  const std::string costs =
      "1 micro-batch is too few to fill 2 stages: stages of equal duration idle for 100 % of their compute time";
  CHECK(contains(few.text, costs));
  for (const char* command : {"check ", "plan --json "})
    CHECK(contains(
        call(command + run_file(folder) + " --ranks 2 --set parallel.pipeline=2 --set train.micro_batch_size=4").text,
        costs));
  CHECK(contains(few.text, "stage 1   ."));
}

TEST_CASE("ranks that share sequences train and evaluate the model of one rank, and it generates the same text",
          "[cli][context]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder), dir = folder.path("run"), same = " --set optimizer.eps=1e-2";
  REQUIRE(call("train " + run + same).code == 0);
  const std::vector<Json> one = metrics(dir);
  const std::string generate = "generate " + dir + " --prompt the --tokens 20 --temperature 0",
                    text = call(generate).text;
  struct Row {
    int ranks;
    std::string sets;
  };
  for (const Row& row : {Row{2, "parallel.context=2"}, Row{4, "parallel.context=2 --set zero.stage=3"},
                         Row{4, "parallel.context=2 --set parallel.pipeline=2 --set pipeline.schedule=zb_h1"}}) {
    CAPTURE(row.ranks, row.sets);
    const Result trained = on_ranks(row.ranks, "train " + run + same + " --check-hazards --set " + row.sets);
    INFO(trained.text);
    REQUIRE(trained.code == 0);
    const std::vector<Json> lines = metrics(dir);
    REQUIRE(lines.size() == one.size());
    for (size_t i = 0; i < one.size(); ++i) {
      CHECK(lines[i].at("loss").as_double() == Approx(one[i].at("loss").as_double()).epsilon(1e-6));
      CHECK(lines[i].at("grad_norm").as_double() == Approx(one[i].at("grad_norm").as_double()).epsilon(1e-5));
      CHECK(lines[i].at("tokens").as_int() == one[i].at("tokens").as_int());
    }
    CHECK(lines.back().at("val_loss").as_double() == Approx(one.back().at("val_loss").as_double()).epsilon(1e-6));
    CHECK(call(generate).text == text);
  }
}

TEST_CASE("impossible rings are refused with their numbers", "[cli][context]") {
  Folder folder;
  const std::string run = run_file(folder);
  check_refused(call("plan " + run + " --ranks 3 --set parallel.context=3"), 2,
                {"train.sequence_length = 16", "2 x parallel.context = 6", "Use 12 or 18"});
  check_refused(call("check " + run + " --ranks 16 --set parallel.context=16"), 2,
                {"2 x parallel.context = 32", "Use 32"});
  check_refused(call("plan " + run + " --ranks 6 --set parallel.context=4"), 2, {"context 4", "do not divide the 6"});
  check_refused(call("plan " + run + " --ranks 4 --set parallel.context=4 --set zero.stage=1 --set zero.shard_size=3"),
                2, {"3", "4 data-parallel ranks"});
  const Result plan = call("plan " + run + " --ranks 8 --set parallel.context=4");
  INFO(plan.text);
  CHECK(plan.code == 0);
  CHECK(contains(plan.text, "data 2 x tensor 1 x pipeline 1 x context 4"));
  CHECK(contains(plan.text, "ring_gradients"));
  CHECK(call("check " + run + " --ranks 8 --set parallel.context=4 --set zero.stage=3").code == 0);
}

TEST_CASE("the order of ranks does not change bits", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder) + " --set train.micro_batch_size=1", dir = folder.path("run");
  for (const char* axes : {"parallel.tensor=2", "parallel.tensor=2 --set parallel.pipeline=2",
                           "parallel.context=2 --set zero.stage=2", "parallel.pipeline=2 --set zero.stage=1"}) {
    std::set<std::string> hashes, groups;
    for (const char* order : {"tp-cp-pp-dp", "dp-pp-cp-tp", "pp-dp-tp-cp"}) {
      const Result trained = on_ranks(4, "train " + run + " --set " + axes + " --set parallel.order=" + order);
      INFO(axes << " " << order << "\n" << trained.text);
      REQUIRE(trained.code == 0);
      check_complete(dir, 6);
      hashes.insert(metrics(dir).back().at("params_hash").as_string());
      std::istringstream plan(call("plan " + run + " --ranks 4 --set " + axes + " --set parallel.order=" + order).text);
      std::string of_axes;
      for (std::string line; std::getline(plan, line);)
        if (contains(line, "such as ranks ")) of_axes += line + "\n";
      groups.insert(of_axes);
    }
    CAPTURE(axes);
    CHECK(hashes.size() == 1);
    CHECK(groups.size() >= 2);
  }
}

TEST_CASE("ranks that share layers train the model of one rank, and save it whole", "[cli][tensor]") {
  Folder folder;
  const std::string run = run_file(folder) + " --set train.micro_batch_size=2", dir = folder.path("run");
  REQUIRE(call("train " + run).code == 0);
  const auto alone = metrics(dir);
  const size_t saved = read(dir + "/checkpoints/final/model.safetensors").size();
  std::string hash;
  for (const auto& [ranks, more] : std::vector<std::pair<int, std::string>>{
           {2, ""},
           {4, " --set parallel.pipeline=2"},
           {2, " --set parallel.sequence_parallel=true --set train.recompute=full"}}) {
    const Result shared = on_ranks(ranks, "train " + run + " --set parallel.tensor=2" + more);
    INFO(more << "\n" << shared.text);
    REQUIRE(shared.code == 0);
    check_complete(dir, 6);
    const auto seen = metrics(dir);
    REQUIRE(seen.size() == alone.size());
    for (size_t i = 0; i < seen.size(); ++i)
      CHECK(seen[i].at("loss").as_double() == Approx(alone[i].at("loss").as_double()).epsilon(1e-5));
    CHECK(read(dir + "/checkpoints/final/model.safetensors").size() == saved);
    if (ranks == 2 && more.empty()) hash = seen.back().at("params_hash").as_string();
    if (ranks == 4) CHECK(seen.back().at("params_hash").as_string() == hash);
    CHECK(call("generate " + dir + " --prompt the --tokens 5 --seed 3").code == 0);
  }
  check_refused(call("check " + run + " --ranks 3 --set parallel.tensor=3"), 2,
                {"parallel.tensor = 3", "does not divide", "model.heads"});
}

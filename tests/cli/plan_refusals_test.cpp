// SPDX-License-Identifier: Apache-2.0
// Layouts, schedules, multipliers, machines and sizes that plan and check refuse.

#include <cstdio>
#include <initializer_list>

#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

TEST_CASE("the layouts that an error offers can be planned, and all others are refused", "[cli]") {
  Folder folder;
  const std::string sizes = run_file(folder) + " --set model.layers=12 --set train.global_batch_size=24",
                    csv = folder.path("schedule.csv");
  const auto piped = [](int pipeline) { return " --set parallel.pipeline=" + std::to_string(pipeline); };
  REQUIRE(call("plan " + sizes + piped(2) + " --ranks 4 --schedule-csv " + csv).code ==
          0);  // a schedule of 6 micro-batches
  for (const auto& [more, world] : std::initializer_list<std::pair<std::string, int>>{
           {" --set pipeline.schedule=interleaved_1f1b --set pipeline.virtual_stages=2", 12},
           {" --set pipeline.schedule_file=" + csv, 16}}) {
    const std::string plan = "plan " + sizes + more + " --ranks " + std::to_string(world);
    const Result list = call(plan + piped(2) + " --set parallel.data=5");
    check_refused(
        list, 2,
        {"data 5 x tensor 1 x pipeline 2 x context 1 = 10 ranks, but " + std::to_string(world) + " were started"});
    int offered = 0;
    for (int data = 1; data <= world; ++data)
      for (int tensor = 1; tensor <= 2; ++tensor)
        for (int pipeline = 1; pipeline <= world / data / tensor; ++pipeline) {
          const int context = world / data / tensor / pipeline;
          if (data * tensor * pipeline * context != world) continue;
          char text[64];
          std::snprintf(text, sizeof text, "%dx%dx%dx%d", data, tensor, pipeline, context);
          const bool is_offered = contains(list.text, std::string(" ") + text);
          const Result tried =
              call("plan " + sizes + more + piped(pipeline) + " --ranks " + std::to_string(world) +
                   " --set parallel.data=" + std::to_string(data) + " --set parallel.tensor=" + std::to_string(tensor) +
                   " --set parallel.context=" + std::to_string(context));
          INFO(more << " " << text << "\n" << list.text << tried.text);
          CHECK((tried.code == 0) == is_offered);
          offered += is_offered;
        }
    CHECK(offered > 1);
  }
}

TEST_CASE("an imported schedule with a missing or repeated action is refused before the first step", "[cli]") {
  Folder folder;
  const std::string plan = "plan " + run_file(folder) +
                           " --ranks 2 --set parallel.pipeline=2 --set train.global_batch_size=8",
                    csv = folder.path("schedule.csv");
  REQUIRE(call(plan + " --schedule-csv " + csv).code == 0);
  const std::string rows = read(csv), taken = plan + " --set pipeline.schedule_file=" + csv;
  CHECK(call(taken).code == 0);
  const size_t at = rows.find("1,2,");
  const std::string row = rows.substr(at, rows.find('\n', at) + 1 - at);
  folder.write("schedule.csv", rows.substr(0, at) + rows.substr(at + row.size()));
  check_refused(call(taken), 2, {"stage 1", "is missing", "schedule.csv"});
  folder.write("schedule.csv", rows + "1,99," + row.substr(4));
  check_refused(call(taken), 2, {"stage 1", "appears twice", "schedule.csv"});
}

TEST_CASE("an imported schedule for other chunks, or one that waits in a circle, is refused with code 2", "[cli]") {
  Folder folder;
  const std::string run = run_file(folder),
                    piped = run + " --set parallel.pipeline=2 --set model.layers=4 --set train.global_batch_size=4",
                    csv = folder.path("schedule.csv"), taken = piped + " --set pipeline.schedule_file=" + csv;
  // The file has one chunk per stage, where stages have two (pytorch/torchtitan#568: the run hung).
  const std::string two = " --set pipeline.virtual_stages=2";
  REQUIRE(call("plan " + piped + " --ranks 2 --schedule-csv " + csv).code == 0);
  CHECK(call("check " + taken + " --ranks 2").code == 0);
  check_refused(call("check " + taken + two + " --ranks 2"), 2,
                {"stage 0: forward of micro-batch 0 in chunk 1 is missing", "schedule.csv", "2 stages x 2 chunks"});
  REQUIRE(
      call("plan " + piped + two + " --set pipeline.schedule=interleaved_1f1b --ranks 2 --schedule-csv " + csv).code ==
      0);
  CHECK(call("check " + taken + two + " --ranks 2").code == 0);
  // The first stage waits for a gradient before it sends the micro-batch that the last stage needs first.
  folder.write("schedule.csv",
               "stage,position,pass,chunk,micro_batch\n0,0,F,0,0\n0,1,B,0,0\n0,2,F,0,1\n0,3,B,0,1\n"
               "1,0,F,0,0\n1,1,F,0,1\n1,2,B,0,0\n1,3,B,0,1\n");
  const std::vector<std::string> circle{
      "These wait for each other: stage 0: backward of micro-batch 0; stage 1: forward of micro-batch 1",
      "schedule.csv"};
  check_refused(call("check " + taken + " --ranks 2"), 2, circle);
  if (has_mpirun()) check_refused(on_ranks(2, "train " + taken), 2, circle);
}

TEST_CASE("a row of optimizer.multipliers that holds for no tensor is refused beside the rows that do", "[cli]") {
  Folder folder;
  const auto plan = [&, run = run_file(folder)](const std::string& rows) {
    return call("plan " + run + " --set device.kind=cpu --set \"optimizer.multipliers=[" + rows + "]\"");
  };
  const auto row = [](const std::string& pattern) { return "\\\"" + pattern + " learning_rate=2\\\""; };
  check_refused(plan(row("*ln_*") + "," + row("*ln_*")), 2,
                {"optimizer.multipliers: row 2 (\"*ln_*\") has no effect because all its tensors match row 1 "
                 "(\"*ln_*\") first. Remove row 2, or move it up."});
  check_refused(plan(row("*.bias") + "," + row("*wte*") + "," + row("*ln_*.weight") + "," + row("*ln_*")), 2,
                {"optimizer.multipliers: row 4 (\"*ln_*\") has no effect because all its tensors match row 1 "
                 "(\"*.bias\") or row 3 (\"*ln_*.weight\") first. Remove row 4, or move it up."});
  check_refused(plan(row("*") + "," + row("*norm*")), 2, {"the pattern \"*norm*\" matches no tensor of the model"});
  for (const std::string& rows : {row("*.bias") + "," + row("*ln_*"), row("*.bias") + "," + row("*")}) {
    const Result accepted = plan(rows);
    INFO(accepted.text);
    CHECK(accepted.code == 0);
  }
}

TEST_CASE("ranks beyond the nodes of a machine file are refused", "[cli]") {
  Folder folder;
  const std::string run = run_file(folder) + " --set train.global_batch_size=64",
                    text = read(source_dir() + "/configs/machines/laptop.toml"),
                    pair = folder.write("pair.toml", "nodes = 2\n" + text),
                    many = folder.write("many.toml", "nodes = 0\n" + text);
  for (const char* command : {"plan ", "check ", "plan --search --seconds 5 "}) {
    CHECK(call(command + run + " --ranks 16 --machine " + pair).code == 0);
    check_refused(call(command + run + " --ranks 32 --machine " + pair), 2,
                  {"32 ranks exceed machine laptop: it has 2 nodes of 8 ranks, 16 ranks. Use --ranks 16 or less"});
  }
  CHECK(call("plan " + run + " --ranks 32 --machine " + many).code == 0);
}

TEST_CASE("a model that does not fit is refused before any forecast", "[cli]") {
  const std::string plan =
      "plan " + source_dir() + "/configs/runs/llama_8b.toml --ranks 1 --machine " + source_dir() +
      "/configs/machines/h100x8.toml --set model.vocab_size=128256 --set zero.stage=0 --set zero.shard_size=0";
  for (const char* flags : {"", " --json"}) {
    const Result refused = call(plan + flags);
    check_refused(refused, 7, {"a rank needs", "h100x8 has 74.51 GiB"});
    CHECK_FALSE(contains(refused.text, "rehearsed"));
  }
}

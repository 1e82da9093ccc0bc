// SPDX-License-Identifier: Apache-2.0
// Snapshots of ranks on fake GPUs in the memory of their hosts: the same bits as without, also after a rank is killed,
// from either copy.

#include "tests/cli/program.h"
#include "trainer/runtime/durability/keeper.h"

using namespace slipstream;
using namespace slipstream::program;
using runtime::Keeper;

namespace {

/// Emulated kernels take most of the time, so these runs have half the tokens of the runs on a CPU.
std::string train(const Folder& folder, const std::string& name, const std::string& sets) {
  std::string run = read(run_file(folder));
  const size_t tokens = run.find("context = 16\n");
  REQUIRE(tokens != std::string::npos);
  return fake_gpu_program() + " train " + folder.write("run.toml", run.replace(tokens, 12, "context = 8")) +
         " --set device.kind=cuda --set train.steps=8 --set train.log_interval=3 --set output.dir=" +
         folder.path(name) + sets;
}

Result on_gpus(int ranks, const std::string& command, const std::string& environment = "") {
  return shell(environment + " SLIPSTREAM_SHARE_GPU=1 " + mpirun() + "-np " + std::to_string(ranks) + " " + command,
               150);
}

std::string keeper_of(const std::string& run) { return Json::parse(read(run + "/run.json")).at("keeper").as_string(); }

int64_t resumed_step(const Result& result) {
  return static_cast<int64_t>(number_after(result.text, "resumed from memory of 1 host (step "));
}

}  // namespace

TEST_CASE("a run on GPUs that is killed goes on from the memory of its peers with the same bits", "[cuda]") {
  if (!has_mpirun()) return;
  struct Row {
    int ranks;
    std::string sets, point;
    int64_t interval = 1;
  };
  std::vector<Row> rows = {{2, " --set zero.stage=1", "step@1#6"},
                           {4, " --set parallel.pipeline=2", "keep.exchange@2#14"}};
  if (test_everything()) {
    rows.push_back({2, "", "keep.snapshot@0#100"});
    rows.push_back({2, " --set optimizer.double_buffer=true", "keep.seal@1#3"});
    rows.push_back({2, " --set zero.stage=3", "keep.all_reduce@0#4"});
    rows.push_back({2, " --set device.graph=false", "keep.mark@1#3"});
    rows.push_back({2, "", "step@0#7", 3});
  }
  for (const Row& row : rows) {
    Folder folder;
    INFO(row.ranks << row.sets << " " << row.point);
    const std::string every = row.sets + " --set checkpoint.peer_interval=" + std::to_string(row.interval),
                      run = folder.path("run");
    const Result without = on_gpus(row.ranks, train(folder, "whole", row.sets));
    INFO(without.text);
    REQUIRE(without.code == 0);
    const std::vector<std::string> whole = trajectory(folder.path("whole"));
    REQUIRE(whole.size() == 8);
    const Result killed = on_gpus(row.ranks, train(folder, "run", every), "SLIPSTREAM_FAIL_POINT=" + row.point);
    INFO(killed.text);
    CHECK(killed.code != 0);
    const auto reached = std::ssize(trajectory(run));
    if (row.ranks == 2) {
      // What the host of rank 0 held is lost: its own part, and the second copy of the part of rank 1.
      const std::unique_ptr<Keeper> keeper = Keeper::find(keeper_of(run));
      REQUIRE(keeper);
      int dropped = 0;
      for (const std::string& name : keeper->list())
        if (name.ends_with(".0.0") || name.ends_with(".1.1")) {
          keeper->drop(name);
          ++dropped;
        }
      CHECK(dropped == 2);
    }
    const Result resumed = on_gpus(row.ranks, train(folder, "run", every + " --resume"));
    INFO(resumed.text);
    REQUIRE(resumed.code == 0);
    CHECK(resumed_step(resumed) >= reached - row.interval);
    CHECK(resumed_step(resumed) <= reached + 1);  // a line without times stands in its place
    CHECK(trajectory(run) == whole);
    check_complete(run, 8);
  }
}

TEST_CASE("kept snapshots of GPUs: every launch is checked for hazards, and random pauses change nothing", "[cuda]") {
  if (!has_mpirun()) return;
  Folder folder;
  const auto hash_of = [&](const std::string& name, const std::string& sets) {
    const Result result = on_gpus(2, train(folder, name, sets));
    INFO(result.text);
    REQUIRE(result.code == 0);
    return trajectory(folder.path(name));
  };
  CHECK(hash_of("kept", " --set checkpoint.peer_interval=1 --check-hazards --inject-delays 3") == hash_of("plain", ""));
}

// SPDX-License-Identifier: Apache-2.0
// Steps whose loss or gradient norm is not finite or a spike: skipped updates, and returns to a checkpoint.

#include <fmt/core.h>

#include "engine/checkpoint/manifest.h"
#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

/// Each update multiplies the weights by a million, until no loss is finite.
const std::string kDiverges =
    " --set optimizer.learning_rate=1000 --set optimizer.min_learning_rate=1000 --set optimizer.warmup_steps=0 --set "
    "optimizer.weight_decay=1000 --set optimizer.grad_clip=0 --set train.steps=60";

/// Two characters at random, except at one place: windows that contain it have a large loss.
std::string text_with_a_spike() {
  std::string text;
  uint32_t state = 1;
  for (int i = 0; i < 20'000; ++i) {
    state = state * 1664525u + 1013904223u;
    text += state >> 31 ? "b" : "a";
  }
  for (size_t i = 0; i < 16; ++i) text[7'000 + i] = static_cast<char>(200 + i);
  return text;
}

std::vector<int64_t> skipped_steps(const std::string& run) {
  std::vector<int64_t> steps;
  for (const Json& line : metrics(run))
    if (line.find("skipped") != nullptr) steps.push_back(line.at("step").as_int());
  return steps;
}

std::string last_hash(const std::string& run) { return metrics(run).back().at("params_hash").as_string(); }

}  // namespace

TEST_CASE("train.on_nan = skip leaves out updates on all ranks alike, and ends after too many in a row", "[cli]") {
  Folder folder;
  const std::string train = "train " + run_file(folder) + kDiverges +
                            " --set train.on_nan=skip --set train.max_skips=3 --set train.log_interval=1";
  for (const int stage : {0, 3}) {
    if (stage > 0 && !has_mpirun()) return;
    check_refused(stage == 0 ? call(train) : on_ranks(2, train + " --set zero.stage=3"), 5,
                  {"4 updates in a row were skipped, more than train.max_skips = 3; the loss is ",
                   ". Its update is skipped", " | update skipped |"});
    const std::vector<Json> lines = metrics(folder.path("run"));
    REQUIRE(lines.size() >= 4);
    for (size_t i = 0; i < lines.size(); ++i) CHECK((lines[i].find("skipped") != nullptr) == (i + 3 >= lines.size()));
    CHECK(lines.back().at("loss").is_null());
    CHECK(!fs::exists(folder.path("run") + "/checkpoints/final"));
  }
}

TEST_CASE("a spike of the loss warns, and skips its update with train.on_nan = skip", "[cli]") {
  Folder folder;
  const std::string run = folder.path("run");
  const std::string train = "train " + run_file(folder) + " --set data.format=text --set data.train=" +
                            folder.write("spike.txt", text_with_a_spike()) +
                            " --set train.steps=230 --set train.spike_zscore=6 --set train.log_interval=640";
  const Result warned = call(train);
  INFO(warned.text);
  CHECK(warned.code == 0);
  CHECK(contains(warned.text, " exceeds its mean "));
  CHECK(contains(warned.text, " standard deviations of "));
  CHECK(skipped_steps(run).empty());
  const std::string skips = train + " --set train.on_nan=skip";
  const Result one = call(skips);
  CHECK(one.code == 0);
  const std::vector<int64_t> steps = skipped_steps(run);
  REQUIRE(!steps.empty());
  for (const int64_t step : steps) CHECK(step > 68);
  CHECK(count(one.text, ". Its update is skipped") == static_cast<int>(steps.size()));
  const std::string hash = last_hash(run);
  // A resumed run knows the window: it continues shortly before a skipped step. The limits do not depend on timing.
  const std::string before = std::to_string(steps[0] - 2),
                    saves = skips + " --set checkpoint.async=false --set checkpoint.interval=" + before;
  CHECK(shell("SLIPSTREAM_FAIL_POINT=step#" + std::to_string(steps[0] + 5) + " " + exe() + " " + saves).code == 137);
  CHECK(contains(call(saves + " --resume --inject-delays 3").text, "(step " + before + ", "));
  CHECK(skipped_steps(run) == steps);
  CHECK(last_hash(run) == hash);
  if (!has_mpirun()) return;
  CHECK(on_ranks(2, skips + " --set zero.stage=1").code == 0);
  CHECK(skipped_steps(run) == steps);
}

TEST_CASE("train.on_nan = rollback goes back to a checkpoint and leaves out the batches up to a spike", "[cli]") {
  Folder folder;
  const std::string run = folder.path("run");
  const std::string train = "train " + run_file(folder) + " --set data.format=text --set data.train=" +
                            folder.write("spike.txt", text_with_a_spike()) +
                            " --set optimizer.decay_steps=640 --set train.log_interval=640 --set "
                            "checkpoint.keep=99 --set checkpoint.interval=30 ";
  const Result warned = call(train + "--set train.steps=320 --set train.spike_zscore=6");
  const auto spike = static_cast<int64_t>(number_after(warned.text, "warning: step "));
  REQUIRE(spike > 68);
  const int64_t back = (spike - 1) / 30 * 30, steps = spike + 40;
  const std::string until = train + "--set train.steps=" + std::to_string(steps) + " ";
  const std::string returns = until + "--set train.spike_zscore=6 --set train.on_nan=rollback";
  const auto check_run = [&](const Result& result, const std::string& hash) {
    INFO(result.text);
    CHECK(result.code == 0);
    CHECK(contains(result.text, "[train] step " + std::to_string(spike) + ": the loss "));
    CHECK(contains(result.text, "The run goes back to step " + std::to_string(back) + " "));
    CHECK(metrics(run).size() == static_cast<size_t>(steps));
    check_complete(run, steps);
    if (!hash.empty()) CHECK(last_hash(run) == hash);
  };
  // A run that does not look for spikes continues from the same checkpoint after the same batches.
  REQUIRE(call(until).code == 0);
  for (const fs::directory_entry& entry : fs::directory_iterator(run + "/checkpoints"))
    if (!contains(entry.path().string(), fmt::format("step-{:08}", back))) fs::remove_all(entry.path());
  const std::string file = run + fmt::format("/checkpoints/step-{:08}/", back) + checkpoint::kManifestFile;
  checkpoint::Manifest manifest = checkpoint::parse_manifest(read(file), file);
  manifest.skipped_batches = spike - back;
  std::ofstream(file) << checkpoint::text_of(manifest);
  REQUIRE(call(until + "--resume").code == 0);
  const std::string hash = last_hash(run);

  check_run(call(returns), hash);
  // The run is killed after the return, and is resumed from the checkpoint before it, or from one after it.
  for (const int64_t passages : {spike + 5, spike + 2 + 35}) {
    CHECK(shell("SLIPSTREAM_FAIL_POINT=step#" + std::to_string(passages) + " " + exe() + " " + returns).code == 137);
    const Result resumed = call(returns + " --resume");
    INFO(resumed.text);
    CHECK(contains(resumed.text, "resumed from "));
    CHECK(resumed.code == 0);
    CHECK(last_hash(run) == hash);
    check_complete(run, steps);
  }
  // A signal while the run goes back is not lost: the next step saves, and the run goes on as without it.
  const auto signalled = [&](const Result& stopped) {
    INFO(stopped.text);
    CHECK(stopped.code == 75);
    const auto step = static_cast<int64_t>(number_after(stopped.text, "a signal ended the run after step "));
    CHECK(step > back);
    CHECK(step <= back + 2);  // all ranks know of it a step later
    CHECK(fs::exists(run + fmt::format("/checkpoints/step-{:08}/{}", step, checkpoint::kManifestFile)));
  };
  signalled(shell("SLIPSTREAM_FAIL_POINT=rollback.signal " + exe() + " " + returns));
  CHECK(call(returns + " --resume").code == 0);
  CHECK(last_hash(run) == hash);
  if (!has_mpirun()) return;
  check_run(on_ranks(2, returns + " --set zero.stage=1"), "");
  signalled(shell("SLIPSTREAM_FAIL_POINT=rollback.signal@1 " + mpirun() + "-np 2 " + exe() + " " + returns));
}

TEST_CASE("train.on_nan = rollback ends after too many returns, or without a checkpoint to go back to", "[cli]") {
  Folder folder;
  const std::string train =
      "train " + run_file(folder) + kDiverges + " --set train.on_nan=rollback --set train.max_skips=2";
  for (const int ranks : {1, 2}) {
    if (ranks > 1 && !has_mpirun()) return;
    const auto start = [&](const std::string& line) { return ranks == 1 ? call(line) : on_ranks(ranks, line); };
    const Result returned = start(train + " --set checkpoint.interval=1");
    check_refused(returned, 5, {"The run went back to step ", " 2 times, the limit of train.max_skips."});
    CHECK(count(returned.text, "goes back to step") >= 2);
    CHECK(count(returned.text, "slipstream: ") == 1);
    CHECK(!fs::exists(folder.path("run") + "/checkpoints/final"));
    const auto back = static_cast<size_t>(number_after(returned.text, "The run went back to step "));
    CHECK(metrics(folder.path("run")).size() >= back);
    check_refused(start(train + " --set checkpoint.interval=1000"), 5, {"No earlier checkpoint exists."});
  }
}

TEST_CASE("--replay runs a step twice from a checkpoint, and names the rank and the tensor of a changed bit", "[cli]") {
  Folder folder;
  const std::string run = folder.path("run");
  struct Row {
    int ranks;
    std::string sets;
    bool sampled = false;  // false: it runs only with scripts/test.sh --all
  };
  const Row rows[] = {{1, " --set optimizer.double_buffer=true --set optimizer.grad_clip=0", true},
                      {2, " --set zero.stage=1 --set comm.quantize=int8", true},
                      {2, " --set zero.stage=3"},
                      {2, " --set parallel.pipeline=2"}};
  for (const Row& row : rows) {
    if (row.ranks > 1 && !has_mpirun()) return;
    if (!row.sampled && !test_everything()) continue;
    const auto start = [&](const std::string& environment, const std::string& more) {
      const std::string launcher = row.ranks == 1 ? "" : mpirun() + "-np " + std::to_string(row.ranks) + " ";
      return shell(environment + launcher + exe() + " train " + run_file(folder) + row.sets +
                   " --set train.steps=8 --set checkpoint.interval=4 --set checkpoint.keep=9" + more);
    };
    REQUIRE(start("", "").code == 0);
    const auto files = [&] {
      std::string all = read(run + "/metrics.jsonl");
      for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder.path("")))
        all += entry.path().string() + "\n";
      return all;
    };
    const std::string before = files();
    for (const int step : {1, 8}) {
      const Result replayed = start("", " --resume --replay " + std::to_string(step));
      INFO(replayed.text);
      CHECK(replayed.code == 0);
      CHECK(contains(replayed.text, "step " + std::to_string(step) +
                                        ": two executions from the same state have the same bits on " +
                                        std::to_string(row.ranks) + " rank"));
      CHECK(contains(replayed.text, "resumed from") == (step > 1));
    }
    const std::string last = std::to_string(row.ranks - 1);
    const Result differing = start("SLIPSTREAM_FAIL_POINT=replay.flip@" + last + " ", " --resume --replay 7");
    check_refused(differing, 5,
                  {"[replay] step 7: two executions from the same state differ on ",
                   "The first difference is in the momentum of ", " on rank " + last});
    CHECK(count(differing.text, "slipstream: ") == 1);
    CHECK(files() == before);
  }
  check_refused(call("train " + run_file(folder) + " --replay 3"), 2, {"--replay requires --resume"});
  check_refused(call("train " + run_file(folder) + " --resume --replay 9"), 2,
                {"--replay 9 is no step", "train.steps = 6"});
  check_refused(call("train " + run_file(folder) + " --resume --replay 0"), 2, {"--replay 0 is no step"});
}

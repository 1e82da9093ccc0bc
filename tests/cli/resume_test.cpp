// SPDX-License-Identifier: Apache-2.0
// Runs that end early and go on: the same bits on the same layout, the same model on others, and refusals.

#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <sstream>
#include <thread>

#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

const std::string kSteps = " --set train.steps=8 --set train.hash_interval=1";

std::string killed_at(const std::string& point) { return "SLIPSTREAM_FAIL_POINT=" + point + " "; }

std::string train(const Folder& folder, const std::string& name, const std::string& more = "") {
  return "train " + run_file(folder) + kSteps + " --set output.dir=" + folder.path(name) + more;
}

}  // namespace

TEST_CASE("resume: a killed run goes on with the same bits", "[cli]") {
  Folder folder;
  const std::string every2 = " --set checkpoint.interval=2";
  REQUIRE(call(train(folder, "whole")).code == 0);
  const std::vector<std::string> whole = trajectory(folder.path("whole"));
  REQUIRE(whole.size() == 8);
  int number = 0;
  for (const std::string point :
       {"step#0", "step#5", "save.begun#1", "save.in_file#30", "save.file#2", "save.gathered#1", "save.manifest#2",
        "save.renamed#0", "save.committed#3", "remove.renamed#0"}) {
    const std::string name = "killed" + std::to_string(number++);
    const Result first = shell(killed_at(point) + exe() + " " + train(folder, name, every2));
    INFO(point << "\n" << first.text);
    CHECK(first.code == 137);
    const Result second = call(train(folder, name, every2 + " --resume"));
    INFO(second.text);
    REQUIRE(second.code == 0);
    CHECK(
        contains(second.text, point == "step#0" || point == "save.in_file#30" ? "has no checkpoint" : "resumed from"));
    CHECK(trajectory(folder.path(name)) == whole);
    check_complete(folder.path(name), 8);
    CHECK(fs::exists(folder.path(name) + "/checkpoints/step-00000008/manifest.json"));
  }
  // Nothing is left to train.
  const Result again = call(train(folder, "killed1", every2 + " --resume"));
  CHECK(again.code == 0);
  CHECK(contains(again.text, "step 8 of 8: nothing is left to train"));
  const Result beyond = call(train(folder, "killed1", every2 + " --resume --set train.steps=5"));
  INFO(beyond.text);
  CHECK(beyond.code == 0);
  CHECK(contains(beyond.text, "step 8 of 5: nothing is left to train"));
  CHECK(trajectory(folder.path("killed1")) == whole);
}

TEST_CASE("resume: on several ranks, the same layout gives the same bits, any other the same model", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const auto ranks = [&](int n, const std::string& name, const std::string& more) {
    const Result result = on_ranks(n, train(folder, name, more));
    INFO(result.text);
    REQUIRE(result.code == 0);
    return result.text;
  };
  struct Row {
    int ranks;
    std::string sets;
  };
  const std::vector<Row> rows = {{2, " --set zero.stage=1"},
                                 {2, " --set zero.stage=3"},
                                 {2, " --set parallel.tensor=2"},
                                 {2, " --set parallel.pipeline=2"},
                                 {2, " --set comm.quantize=int8 --set comm.error_feedback=true"},
                                 {1, ""}};
  for (size_t r = 0; r < rows.size(); ++r) {
    INFO(rows[r].sets);
    const std::string own = std::to_string(r), sets = rows[r].sets;
    ranks(rows[r].ranks, "whole" + own, sets);
    ranks(rows[r].ranks, "part" + own, sets + " --set checkpoint.interval=4 --set checkpoint.keep=9");
    fs::remove_all(folder.path("part" + own) + "/checkpoints/step-00000008");
    fs::copy(folder.path("part" + own), folder.path("other" + own), fs::copy_options::recursive);
    const std::string text = ranks(rows[r].ranks, "part" + own, sets + " --resume");
    CHECK(contains(text, "step-00000004 (step 4, "));
    CHECK(trajectory(folder.path("part" + own)) == trajectory(folder.path("whole" + own)));
    const bool feeds_back = contains(sets, "error_feedback");
    CHECK(!contains(text, "rounding errors"));
    // The next row's layout loads this one's.
    const Row& other = rows[(r + 1) % rows.size()];
    const std::string of_other = ranks(other.ranks, "other" + own, other.sets + " --resume");
    CHECK(contains(of_other,
                   "(comm.error_feedback, data 2, tensor 1, pipeline 1, context 1), which another layout "
                   "drops") == feeds_back);
    const std::vector<Json> lines = metrics(folder.path("other" + own));
    REQUIRE(lines.size() == 8);
    for (size_t i = 0; i < 8; ++i)
      CHECK(lines[i].at("loss").as_double() ==
            Approx(metrics(folder.path("whole" + own))[i].at("loss").as_double()).epsilon(2e-3));
  }
}

TEST_CASE("resume: dropout goes on with the masks of the next step, on other layouts too; rates may change", "[cli]") {
  Folder folder;
  const std::string drops =
      " --set model.embd_pdrop=0.1 --set model.resid_pdrop=0.2 --set model.attn_pdrop=0.3 --set checkpoint.interval=4";
  REQUIRE(call(train(folder, "none")).code == 0);
  REQUIRE(call(train(folder, "whole", drops)).code == 0);
  const std::vector<std::string> whole = trajectory(folder.path("whole"));
  REQUIRE(whole.size() == 8);
  CHECK(whole != trajectory(folder.path("none")));
  CHECK(shell(killed_at("step#5") + exe() + " " + train(folder, "part", drops)).code == 137);
  fs::copy(folder.path("part"), folder.path("other"), fs::copy_options::recursive);
  REQUIRE(call(train(folder, "part", drops + " --resume")).code == 0);
  CHECK(trajectory(folder.path("part")) == whole);
  const std::string config = read(folder.path("part") + "/checkpoints/final/config.json");
  CHECK(contains(config, "\"resid_pdrop\": 0.2"));
  CHECK(contains(config, "\"embd_pdrop\": 0.1"));
  CHECK(contains(config, "\"attn_pdrop\": 0.3"));
  if (has_mpirun()) {
    const Result two = on_ranks(2, train(folder, "other", drops + " --resume --set parallel.tensor=2"));
    INFO(two.text);
    REQUIRE(two.code == 0);
    const std::vector<Json> lines = metrics(folder.path("other")), expected = metrics(folder.path("whole"));
    REQUIRE(lines.size() == 8);
    for (size_t i = 0; i < 8; ++i)
      CHECK(lines[i].at("loss").as_double() == Approx(expected[i].at("loss").as_double()).epsilon(1e-5));
  }
  const Result less = call(train(folder, "part", drops + " --resume --set train.steps=9 --set model.resid_pdrop=0"));
  INFO(less.text);
  CHECK(less.code == 0);
  CHECK(contains(less.text, "note: model.resid_pdrop = 0.0 (until step 8: 0.2)"));
}

TEST_CASE("resume: error feedback may begin and end at a checkpoint", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string int8 = " --set comm.quantize=int8", feedback = int8 + " --set comm.error_feedback=true";
  REQUIRE(on_ranks(2, train(folder, "run", int8 + " --set train.steps=4")).code == 0);
  const Result begins = on_ranks(2, train(folder, "run", feedback + " --set train.steps=6 --resume"));
  INFO(begins.text);
  CHECK(begins.code == 0);
  CHECK(!contains(begins.text, "rounding errors"));
  const Result ends = on_ranks(2, train(folder, "run", int8 + " --resume"));
  INFO(ends.text);
  CHECK(ends.code == 0);
  CHECK(contains(ends.text, "has rounding errors of int8 gradients (comm.error_feedback, data 2, "));
  CHECK(contains(ends.text, "which this run drops"));
  CHECK(metrics(folder.path("run")).size() == 8);
}

TEST_CASE("resume: a damaged checkpoint is skipped with the reason, or refused if it is the only one", "[cli]") {
  Folder folder;
  const std::string dir = folder.path("run") + "/checkpoints";
  REQUIRE(call(train(folder, "run", " --set checkpoint.interval=3 --set checkpoint.keep=3")).code == 0);
  const std::vector<std::string> whole = trajectory(folder.path("run"));
  fs::resize_file(dir + "/step-00000008/rank-0000.safetensors", 100);
  const Result second = call(train(folder, "run", " --resume"));
  INFO(second.text);
  CHECK(second.code == 0);
  CHECK(contains(second.text, "step-00000008 is skipped: rank-0000.safetensors has 100 bytes"));
  CHECK(contains(second.text, "resumed from " + dir + "/step-00000006"));
  CHECK(trajectory(folder.path("run")) == whole);
  check_refused(call("checkpoint verify " + folder.path("nothing")), 4, {"not a folder"});
  CHECK(contains(call("checkpoint list " + folder.path("run")).text, "step 6"));
  CHECK(contains(call("checkpoint show " + folder.path("run")).text, "train.steps = 8"));
  for (const char* step : {"6", "8"}) std::ofstream(dir + "/step-0000000" + step + "/manifest.json") << "{}";
  check_refused(call("checkpoint verify " + folder.path("run")), 4, {"2 of 2 checkpoints"});
  check_refused(call(train(folder, "run", " --resume")), 4, {"none of the 2 checkpoints", "not a valid manifest"});
  CHECK(trajectory(folder.path("run")) == whole);
}

TEST_CASE("resume: a run does not begin inside the folder of another one, and flags take no values", "[cli]") {
  Folder folder;
  REQUIRE(call(train(folder, "run", " --set checkpoint.interval=4")).code == 0);
  for (const std::string inside : {"run/checkpoints", "run/checkpoints/step-00000008", "run/new/er"})
    check_refused(call(train(folder, inside, " --resume")), 2,
                  {"/" + inside + "\" has no checkpoint", "the run \"" + folder.path("run") + "\""});
  CHECK(!fs::exists(folder.path("run/checkpoints/run.json")));
  CHECK(!fs::exists(folder.path("run/new")));
  CHECK(call("checkpoint verify " + folder.path("run")).code == 0);
  // Otherwise --resume=no would resume.
  check_refused(call(train(folder, "run", " --resume=no")), 2, {"--resume takes no value"});
  check_refused(call(train(folder, "run", " --dry-run=1")), 2, {"--dry-run takes no value"});
  check_refused(call("tokenize " + folder.path("text.txt") + " " + folder.path("")), 2, {"is a folder"});
  CHECK(!fs::exists(folder.path(".bin")));
  const Result beside = call(train(folder, "other", " --resume"));
  CHECK(beside.code == 0);
  CHECK(contains(beside.text, "the run begins at step 1"));
}

TEST_CASE("resume: files that the manifest does not list are ignored with a warning", "[cli]") {
  Folder folder;
  const std::string dir = folder.path("run") + "/checkpoints/step-00000008";
  REQUIRE(call(train(folder, "run", " --set checkpoint.interval=8")).code == 0);
  const std::vector<std::string> whole = trajectory(folder.path("run"));
  CHECK(!contains(call("checkpoint verify " + folder.path("run")).text, "ignored"));
  std::ofstream(dir + "/rank-0001.safetensors") << "of another run";
  const Result verified = call("checkpoint verify " + folder.path("run"));
  CHECK(verified.code == 0);
  CHECK(contains(verified.text, dir + "  ignored: \"rank-0001.safetensors\" is not in the manifest"));
  const Result second = call(train(folder, "run", " --resume"));
  CHECK(second.code == 0);
  CHECK(contains(second.text, "\"rank-0001.safetensors\" is ignored: it is not in the manifest of " + dir));
  CHECK(trajectory(folder.path("run")) == whole);
}

TEST_CASE("resume: a run that skipped a damaged newer checkpoint keeps what it saves", "[cli]") {
  Folder folder;
  const std::string dir = folder.path("run") + "/checkpoints";
  const std::string sets = " --set checkpoint.async=false --set checkpoint.interval=";
  REQUIRE(call(train(folder, "run", sets + "3 --set checkpoint.keep=2")).code == 0);
  const std::vector<std::string> whole = trajectory(folder.path("run"));
  fs::resize_file(dir + "/step-00000008/rank-0000.safetensors", 100);
  // It is killed after the save of step 7, whose folder has a lower number than the damaged one.
  const std::string again = train(folder, "run", sets + "7 --set checkpoint.keep=1 --resume");
  const Result first = shell(killed_at("step#1") + exe() + " " + again);
  INFO(first.text);
  CHECK(first.code == 137);
  CHECK(contains(first.text, "step-00000008 is skipped"));
  for (const char* step : {"6", "7"}) CHECK(fs::exists(dir + "/step-0000000" + step + "/manifest.json"));
  const Result last = call(again);
  INFO(last.text);
  CHECK(last.code == 0);
  CHECK(contains(last.text, "resumed from " + dir + "/step-00000007"));
  CHECK(trajectory(folder.path("run")) == whole);
  CHECK(contains(call("checkpoint verify " + dir).text, "step-00000008  ok"));
}

TEST_CASE("resume: paths with spaces, of any language, of more than 255 bytes and through links", "[cli]") {
  Folder folder;
  const std::string disk = folder.path("a disk/\u00fc\u4f60 #1/" + std::string(120, 'l') + "/" + std::string(140, 'm'));
  fs::create_directories(disk);
  fs::create_directory_symlink(disk, folder.path("link"));
  REQUIRE(call(train(folder, "whole")).code == 0);
  for (const std::string& where : {disk, folder.path("link")}) {
    const std::string run = where + "/run", quoted = "\"" + run + "\"";
    const std::string line = "train " + run_file(folder) + kSteps +
                             " --set checkpoint.async=false --set checkpoint.interval=3 --set output.dir=" + quoted;
    CHECK(shell(killed_at("step#4") + exe() + " " + line).code == 137);
    const Result resumed = call(line + " --resume");
    INFO(resumed.text);
    REQUIRE(resumed.code == 0);
    CHECK(contains(resumed.text, "resumed from " + run + "/checkpoints/step-00000003"));
    CHECK(trajectory(run) == trajectory(folder.path("whole")));
    CHECK(call("checkpoint verify " + quoted).code == 0);
    CHECK(call("generate " + quoted + " --prompt the --tokens 3").code == 0);
    fs::remove_all(run);
  }
}

TEST_CASE("a limited writer holds up no step, and the next save does not wait for its rate", "[cli]") {
  Folder folder;
  const std::string limited = " --set checkpoint.bandwidth=1B/s --set train.hash_interval=0 --set train.log_interval=1";
  const Result result = call(
      train(folder, "run", limited + " --set train.steps=79 --set checkpoint.interval=20 --set checkpoint.keep=9"));
  INFO(result.text);
  REQUIRE(result.code == 0);
  // At one byte per second no file is complete before the next save is due.
  for (const int due : {40, 60}) CHECK(count(result.text, "| saving step " + std::to_string(due - 20) + "\n") >= 17);
  CHECK(count(result.text, "[checkpoint] step 40 is due while step 20 is still being written") == 1);
  CHECK(count(result.text, " is still being written") == 1);
  const Result verified = call("checkpoint verify " + folder.path("run"));
  INFO(verified.text);
  CHECK(verified.code == 0);
  for (const char* step : {"20", "40", "60", "79"})
    CHECK(contains(verified.text, std::string("step-000000") + step + "  ok"));
  const Result planned = call("plan " + run_file(folder) + limited + " --set checkpoint.interval_minutes=1");
  INFO(planned.text);
  CHECK(contains(planned.text, " s at checkpoint.bandwidth"));
  CHECK(contains(planned.text, "longer than checkpoint.interval_minutes = 1"));
}

TEST_CASE("the writer of a checkpoint has the lowest priority, compute threads keep theirs", "[cli]") {
  Folder folder;
  const std::string dir = folder.path("run");
  // Delays make steps long enough to look at.
  std::jthread job([&] {
    call(train(folder, "run",
               " --set checkpoint.bandwidth=1B/s --set checkpoint.interval=20 --set train.steps=39 --inject-delays 1 "
               "--set train.hash_interval=0 --set device.threads=2"));
  });
  std::vector<int> seen;  // niceness of the threads of the process while one of them writes
  for (int tries = 0; tries < 10'000 && seen.empty(); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (!fs::exists(dir + "/checkpoints/step-00000020.tmp")) continue;
    for (const fs::directory_entry& process : fs::directory_iterator("/proc")) {
      std::error_code gone;
      if (!fs::equivalent(process.path() / "exe", exe(), gone) || gone) continue;
      std::string line;
      std::getline(std::ifstream(process.path() / "cmdline", std::ios::binary), line, '\xff');
      if (!contains(line, dir)) continue;
      std::vector<int> values;
      for (const fs::directory_entry& thread : fs::directory_iterator(process.path() / "task", gone)) {
        std::string text, field;
        std::getline(std::ifstream(thread.path() / "stat"), text);
        std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
        for (int i = 0; i < 17; ++i) fields >> field;
        if (fields) values.push_back(std::stoi(field));
      }
      if (std::count(values.begin(), values.end(), 19) > 0) seen = values;
    }
  }
  job.join();
  REQUIRE(seen.size() > 3);
  const int usual = getpriority(PRIO_PROCESS, 0);
  if (usual < 19) CHECK(std::count(seen.begin(), seen.end(), usual) == std::ssize(seen) - 1);
}

TEST_CASE("resume: a checkpoint that cannot be removed is a warning, and training continues", "[cli]") {
  Folder folder;
  REQUIRE(call(train(folder, "run", " --set train.steps=2 --set checkpoint.interval=1 --set checkpoint.keep=2")).code ==
          0);
  // A folder in use, here by a mounted disk, cannot be removed, not even by root.
  const std::string used = folder.path("run") + "/checkpoints/step-00000001/disk";
  fs::create_directories(used);
  const std::string mount = "mount -t tmpfs none " + used;
  if (shell("unshare -rm sh -c \"" + mount + "\"").code != 0) {
    WARN("SKIPPED the folder in use: this machine cannot mount a disk");
    return;
  }
  const Result result = shell("unshare -rm sh -c \"" + mount + " && " + exe() + " " +
                              train(folder, "run", " --resume --set train.steps=5 --set checkpoint.interval=1") + "\"");
  INFO(result.text);
  CHECK(result.code == 0);
  CHECK(contains(result.text, "step-00000001"));
  CHECK(contains(result.text, "cannot be removed"));
  CHECK(metrics(folder.path("run")).size() == 5);
}

TEST_CASE("resume: another model, optimizer or setting is refused with the key", "[cli]") {
  Folder folder;
  REQUIRE(call(train(folder, "run", " --set train.steps=4")).code == 0);
  const std::string resume = " --resume --set train.steps=6";
  check_refused(call(train(folder, "run", resume + " --set model.layers=3")), 4, {"model.layers", "2", "3"});
  check_refused(call(train(folder, "run", resume + " --set optimizer.name=muon")), 4, {"optimizer.name"});
  check_refused(call(train(folder, "run", resume + " --set train.dtype=bfloat16")), 4, {"train.dtype"});
  // A setting of the training needs --set, which states the intention.
  const std::string file = run_file(folder, "\n[zero]\nstage = 0\n");
  std::string text = read(file);
  text.replace(text.find("learning_rate = 3e-3"), 20, "learning_rate = 1e-3");
  const std::string edited = folder.write("edited.toml", text);
  const std::string again = "train " + edited + kSteps + " --set output.dir=" + folder.path("run") + resume;
  check_refused(call(again), 2, {"optimizer.learning_rate", "0.001", "0.003", "--set optimizer.learning_rate=0.001"});
  const Result allowed = call(again + " --set optimizer.learning_rate=0.001");
  INFO(allowed.text);
  CHECK(allowed.code == 0);
  CHECK(contains(allowed.text, "note: optimizer.learning_rate = 0.001 (until step 4: 0.003)"));
  CHECK(metrics(folder.path("run")).size() == 6);
}

TEST_CASE("resume: the folder of model.init is not read again", "[cli]") {
  Folder folder;
  const std::string source = folder.path("source"), gone = folder.path("gone");
  // The sizes are no defaults, and the vocabulary grows.
  REQUIRE(call(train(folder, "first",
                     " --set model.family=llama --set model.heads=4 --set model.kv_heads=2 "
                     "--set model.head_dim=6 --set model.tie_embeddings=true"))
              .code == 0);
  fs::copy(folder.path("first") + "/checkpoints/final", source);
  const std::string short_file = folder.write(
      "short.toml", "[model]\ninit = \"" + source + "\"\nvocab_size = 300\n[data]\ntrain = \"" +
                        folder.path("text.txt") +
                        "\"\n[train]\nmicro_batch_size = 2\nglobal_batch_size = 4\nhash_interval = 1\n"
                        "[optimizer]\ndecay_steps = 8\n[checkpoint]\ninterval = 2\n[device]\nthreads = 1\n");
  const auto run = [&](const std::string& name, const std::string& more, const std::string& file) {
    return call("train " + file + " --set output.dir=" + folder.path(name) + more);
  };
  const std::string four = " --set train.steps=4", again = " --resume --set train.steps=8";
  REQUIRE(run("whole", " --set train.steps=8", short_file).code == 0);
  const std::string hash = metrics(folder.path("whole")).back().at("params_hash").as_string();
  for (const char* name : {"part", "resolved", "changed"}) REQUIRE(run(name, four, short_file).code == 0);
  const auto goes_on = [&](const std::string& name, const std::string& file) {
    const Result result = run(name, again, file);
    INFO(name << "\n" << result.text);
    REQUIRE(result.code == 0);
    CHECK(contains(result.text, "resumed from"));
    CHECK(!contains(result.text, "weights:  from"));
    CHECK(metrics(folder.path(name)).back().at("params_hash").as_string() == hash);
  };
  fs::rename(source, gone);
  check_refused(run("new", four, short_file), 4, {"source", "has no model.safetensors"});
  check_refused(run("new", again, short_file), 4, {"source", "has no model.safetensors"});  // the run has no checkpoint
  // What differs from the checkpoint is refused.
  check_refused(run("part", again + " --set model.width=32", short_file), 4,
                {"was trained with model.width = 16, this run has 32"});
  check_refused(run("part", again + " --set model.init=" + gone, short_file), 4,
                {"was trained with model.init = \"" + source, "this run has \"" + gone});
  check_refused(run("part", again + " --set model.init=", folder.path("part") + "/config.resolved.toml"), 4,
                {"was trained with model.init = \"" + source, "this run has \"\""});
  goes_on("part", short_file);
  goes_on("resolved", folder.path("resolved") + "/config.resolved.toml");
  // Another model in the folder changes nothing.
  fs::create_directory(source);
  folder.write("source/config.json", "{}");
  folder.write("source/model.safetensors", "");
  goes_on("changed", short_file);
}

TEST_CASE("signals: SIGUSR1 saves, ends with 75 and goes on with the same bits", "[cli]") {
  Folder folder;
  // A step takes a quarter of a millisecond on a fast core, and the signal may come a second late on a busy one.
  std::string steps = " --set train.steps=12000 --set train.hash_interval=0";
  REQUIRE(call(train(folder, "whole", steps)).code == 0);
  const auto stop = [&](const std::string& name, const std::string& launcher, const char* signal) {
    Result result;
    std::thread runner([&] { result = shell(launcher + exe() + " " + train(folder, name, steps)); });
    // The run is in its steps when its metrics have lines.
    for (int i = 0; i < 2000 && (!fs::exists(folder.path(name) + "/metrics.jsonl") ||
                                 fs::file_size(folder.path(name) + "/metrics.jsonl") == 0);
         ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    // The signal goes to the program itself or to mpirun, which passes SIGUSR1 on to its ranks, and not to the shells
    // around them.
    shell(std::string("for s in ") + signal + "; do pkill -$s -f \"^" + (launcher.empty() ? exe() : mpirun_program()) +
          " .*output.dir=" + folder.path(name) + "\"; done");
    runner.join();
    return result;
  };
  // More signals before or during the save change nothing.
  for (const char* signal : {"USR1", "TERM", "INT", "USR1 USR1 TERM INT USR1"}) {
    const std::string name = std::string("stopped") + std::to_string(std::string(signal).size()) + signal[0];
    const Result stopped = stop(name, "", signal);
    INFO(stopped.text);
    CHECK(stopped.code == 75);
    CHECK(contains(stopped.text, "a signal ended the run after step"));
    const Result second = call(train(folder, name, steps + " --resume"));
    INFO(second.text);
    REQUIRE(second.code == 0);
    CHECK(trajectory(folder.path(name)) == trajectory(folder.path("whole")));
  }
  if (!has_mpirun()) return;
  steps = " --set train.steps=8000 --set train.hash_interval=0";
  const std::string two = mpirun() + "-np 2 ";
  REQUIRE(on_ranks(2, train(folder, "whole2", steps)).code == 0);
  const Result stopped = stop("stopped2", two, "USR1");
  INFO(stopped.text);
  CHECK(stopped.code == 75);
  const Result second = on_ranks(2, train(folder, "stopped2", steps + " --resume"));
  INFO(second.text);
  REQUIRE(second.code == 0);
  CHECK(trajectory(folder.path("stopped2")) == trajectory(folder.path("whole2")));
}

TEST_CASE("resume on fewer ranks keeps the global batch of the checkpoint unless it is set", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  std::string text = read(run_file(folder));
  text.erase(text.find("global_batch_size = 4\n"), 22);
  const std::string run = "train " + folder.write("run.toml", text) + " --set checkpoint.interval=3 ";
  REQUIRE(on_ranks(2, run).code == 0);  // two ranks have 2 sequences each
  const Result kept = call(run + "--set train.steps=8 --resume");
  INFO(kept.text);
  REQUIRE(kept.code == 0);
  CHECK(contains(kept.text, "2 micro-batches per step of 4 sequences"));
  const Result given = call(run + "--set train.global_batch_size=2 --set train.steps=10 --resume");
  INFO(given.text);
  REQUIRE(given.code == 0);
  CHECK(contains(given.text, "1 micro-batch per step of 2 sequences"));
}

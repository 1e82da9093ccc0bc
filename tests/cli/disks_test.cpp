// SPDX-License-Identifier: Apache-2.0
// Disks and clocks that fail beside a run, through tests/faults/preload.cpp.

#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

std::string faulty(const std::string& rules, const std::string& path) {
  return "LD_PRELOAD=" + faults_library() + " SLIPSTREAM_DISK=\"" + rules + "\" SLIPSTREAM_DISK_PATH=" + path + " ";
}

std::string killed_at(const std::string& point) { return "SLIPSTREAM_FAIL_POINT=" + point + " "; }

/// Losses and hashes by step, and the final weights.
struct Bits {
  std::vector<std::string> lines;
  std::string weights;
  bool operator==(const Bits&) const = default;
};
Bits bits_of(const std::string& run) {
  Bits bits;
  for (const Json& line : metrics(run))
    bits.lines.push_back(line.at("step").dump() + " " + line.at("loss").dump() + " " + line.at("params_hash").dump());
  bits.weights = read(run + "/checkpoints/final/model.safetensors");
  return bits;
}

struct Runs {
  Runs() {
    REQUIRE(shell(train + " --set output.dir=" + folder.path("whole")).code == 0);
    whole = bits_of(folder.path("whole"));
  }

  Folder folder;
  std::string run = folder.path("run");
  std::string train = exe() + " train " + run_file(folder) +
                      " --set train.hash_interval=1 --set checkpoint.interval=2 --set checkpoint.keep=9";
  Bits whole;

  bool saved(int step) const { return fs::exists(run + "/checkpoints/step-0000000" + std::to_string(step)); }
};

}  // namespace

TEST_CASE("short writes and reads are continued", "[cli]") {
  const Runs runs;
  REQUIRE(shell(faulty("write:short:0.7 read:short:0.7", runs.folder.path("")) + runs.train).code == 0);
  CHECK(bits_of(runs.run) == runs.whole);
  CHECK(call("checkpoint verify " + runs.run).code == 0);
}

TEST_CASE("a file system that refuses direct accesses gets ordinary ones", "[cli]") {
  const Runs runs;
  const std::string log = runs.folder.path("log"),
                    refusing = "SLIPSTREAM_DISK_LOG=" + log + " " +
                               faulty("direct:EINVAL:0.5 write:short:0.2", "checkpoints/");
  REQUIRE(shell(refusing + killed_at("save.committed#1") + runs.train).code == 137);
  CHECK(contains(read(log), "direct EINVAL"));
  fs::remove(log);
  REQUIRE(shell(refusing + runs.train + " --resume").code == 0);
  CHECK(contains(read(log), "direct EINVAL"));
  CHECK(bits_of(runs.run) == runs.whole);
}

TEST_CASE("a disk that fails in a save beside training is a warning with the numbers", "[cli]") {
  const Runs runs;
  for (const std::string rule :
       {"write:ENOSPC:1", "sync:EIO:1", "mkdir:ENOSPC:1", "rename:EIO:1", "open:EACCES:1", "mkdir:EROFS:1"}) {
    fs::remove_all(runs.run);
    const Result result = shell(faulty(rule, "step-00000002") + runs.train);
    INFO(rule << "\n" << result.text);
    CHECK(result.code == 0);
    CHECK(contains(result.text, "step 2 is not saved: "));
    const bool is_full = rule.ends_with("ENOSPC:1");
    CHECK(contains(result.text, is_full                      ? "No space left on device. Free space, or "
                                : rule.ends_with("EACCES:1") ? "Permission denied. This user may not write there: "
                                : rule.ends_with("EROFS:1")  ? "Read-only file system. The file system is mounted "
                                                             : "Input/output error. The disk fails: "));
    // Only a full disk is a reason to free space.
    CHECK(contains(result.text, "ree space") == is_full);
    CHECK(contains(result.text, ". A checkpoint needs ") == (is_full && !rule.starts_with("mkdir")));
    CHECK(contains(result.text, "Training goes on; the newest checkpoint is that of step 0."));
    CHECK(!runs.saved(2));
    CHECK((runs.saved(4) && runs.saved(6)));
    CHECK(bits_of(runs.run) == runs.whole);
  }
}

TEST_CASE("a disk that fails in the last save ends the run with code 7 after the final weights", "[cli]") {
  const Runs runs;
  const Result result = shell(faulty("write:ENOSPC:1", "step-00000006") + runs.train);
  check_refused(result, 7, {"step 6 is not saved: ", "the last step, 6, has its weights in ", "but no checkpoint"});
  CHECK(bits_of(runs.run) == runs.whole);
  CHECK((runs.saved(4) && !runs.saved(6)));
  REQUIRE(shell(runs.train + " --resume").code == 0);
  CHECK(bits_of(runs.run) == runs.whole);
}

TEST_CASE("lines of metrics wait in memory while the disk fails", "[cli]") {
  const Runs runs;
  const Result result = shell(faulty("write:ENOSPC:0.6", "metrics.jsonl") + "SLIPSTREAM_DISK_SEED=3 " + runs.train);
  INFO(result.text);
  CHECK(contains(result.text, "metrics.jsonl cannot be written: No space left on device"));
  if (result.code == 0) {
    CHECK(bits_of(runs.run) == runs.whole);
  } else {  // the last save failed as well
    check_refused(result, 7, {"has its weights in"});
  }
  fs::remove_all(runs.run);
  const Result never = shell(faulty("write:ENOSPC:1", "metrics.jsonl") + runs.train);
  check_refused(never, 7, {"step 6 is not saved: ", "metrics.jsonl", "has its weights in"});
  CHECK(!runs.saved(2));  // a checkpoint would lack the lines before it
  CHECK(read(runs.run + "/checkpoints/final/model.safetensors") == runs.whole.weights);
}

TEST_CASE("a checkpoint that was skipped after a passing error is not resumed without its lines of metrics", "[cli]") {
  const Runs runs;
  for (const std::string unread : {"step-00000004/manifest", "step-00000004/rank"}) {
    INFO(unread);
    fs::remove_all(runs.run);
    REQUIRE(shell(killed_at("save.committed#1") + runs.train).code == 137);
    REQUIRE(runs.saved(4));
    const Result skipping = shell(faulty("read:EIO:1", unread) + killed_at("step") + runs.train + " --resume");
    INFO(skipping.text);
    CHECK(skipping.code == 137);
    CHECK(contains(skipping.text, "step-00000004 is skipped: "));
    CHECK(contains(skipping.text, "step-00000004.skipped-1"));
    REQUIRE(shell(runs.train + " --resume").code == 0);
    CHECK(bits_of(runs.run) == runs.whole);
  }
}

TEST_CASE("a file of metrics that cannot be read ends a resumed run, and no line is lost", "[cli]") {
  const Runs runs;
  REQUIRE(shell(killed_at("save.committed#1") + runs.train).code == 137);
  const std::string before = read(runs.run + "/metrics.jsonl");
  for (const std::string rule : {"open:EIO:1", "read:EIO:1"}) {
    const Result result = shell(faulty(rule, "metrics.jsonl") + runs.train + " --resume");
    check_refused(result, 4, {"metrics.jsonl\" cannot be read", "Input/output error"});
    CHECK(read(runs.run + "/metrics.jsonl") == before);
  }
  REQUIRE(shell(runs.train + " --resume").code == 0);
  CHECK(bits_of(runs.run) == runs.whole);
}

TEST_CASE("no checkpoint is committed while the lines before it are not on disk", "[cli]") {
  const Runs runs;
  const Result result = shell(faulty("sync:EIO:1", "metrics.jsonl") + runs.train);
  check_refused(result, 7, {"step 2 is not saved: ", "step 6 is not saved: ", "Input/output error"});
  for (const int step : {2, 4, 6}) CHECK(!runs.saved(step));
}

TEST_CASE("a clock that jumps changes neither the newest checkpoint nor its schedule", "[cli]") {
  const Runs runs;
  const auto clock = [](const std::string& jumps) {
    return "LD_PRELOAD=" + faults_library() + " SLIPSTREAM_CLOCK=\"" + jumps + "\" ";
  };
  const std::string minutes = " --set checkpoint.interval_minutes=600";
  CHECK(shell(clock("86400@0 172800@0.05") + killed_at("save.committed#1") + runs.train + minutes).code == 137);
  const Result result = shell(clock("-86400@0 86400@0.05") + runs.train + minutes + " --resume");
  INFO(result.text);
  CHECK(result.code == 0);
  CHECK(contains(result.text, "resumed from " + runs.run + "/checkpoints/step-00000004"));
  for (const int step : {1, 3, 5}) CHECK(!runs.saved(step));
  CHECK(bits_of(runs.run) == runs.whole);
}

TEST_CASE("resume keeps the lines around a damaged one and reports their number", "[cli]") {
  const Runs runs;
  REQUIRE(shell(killed_at("save.committed#1") + runs.train).code == 137);
  std::string text = read(runs.run + "/metrics.jsonl");
  text[text.find("\"step\"", text.find('\n')) + 1] = 'S';
  std::ofstream(runs.run + "/metrics.jsonl", std::ios::binary) << text;
  const Result result = shell(runs.train + " --resume");
  INFO(result.text);
  REQUIRE(result.code == 0);
  CHECK(contains(result.text, "metrics.jsonl lacks 1 line up to step 4: it was damaged"));
  Bits expected = runs.whole;
  expected.lines.erase(expected.lines.begin() + 1);
  CHECK(bits_of(runs.run) == expected);
}

TEST_CASE("a rank that hangs in a write to disk is named with the file", "[cli]") {
  if (!has_mpirun()) return;
  const Folder folder;
  const Result result =
      shell("SLIPSTREAM_DISK_RANK=0 " + faulty("sync:stuck:1", "final.tmp") + mpirun() + "-np 2 " + exe() + " train " +
            run_file(folder) + " --set train.steps=1 --set comm.save_timeout_seconds=2");
  check_refused(result, 6, {"rank 0 on host ", "at writing \"", "model.safetensors\" to disk for "});
}

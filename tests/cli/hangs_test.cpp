// SPDX-License-Identifier: Apache-2.0
// Ranks that stop or vanish at any phase of a run: all ranks end with code 6 and the name of the right one.

#include <signal.h>

#include <chrono>
#include <sstream>
#include <thread>

#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

constexpr double kMarginSeconds =
    40;  // the watchdog takes 5 s; the machine may be busy, and mpirun ends the other ranks

/// The process of a rank of the job whose command line contains `part`; 0 while there is none.
pid_t process_of(const std::string& part, int rank) {
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto text = [&](const char* file) {
      std::ostringstream all;  // empty if the process has ended
      all << std::ifstream(entry.path() / file, std::ios::binary).rdbuf();
      return all.str();
    };
    const std::string line = text("cmdline");
    if (line.rfind(exe() + '\0', 0) != 0 || !contains(line, part)) continue;
    if (contains(text("environ"), "OMPI_COMM_WORLD_RANK=" + std::to_string(rank) + '\0')) return std::stoi(name);
  }
  return 0;
}

struct Hang {
  Result result;
  double seconds = 0;  // from the signal to the end
};

/// Has the run ended some steps?
bool trains(const std::string& dir) {
  std::error_code error;
  return fs::exists(dir + "/metrics.jsonl", error) && fs::file_size(dir + "/metrics.jsonl", error) > 2000;
}

/// Starts a run and sends a signal to a rank when `now` is true.
Hang hang(int ranks, const std::string& run, const std::string& more, int rank, int signal,
          const std::function<bool(pid_t)>& now, const std::string& environment = "") {
  Hang hang;
  pid_t process = 0;
  std::chrono::steady_clock::time_point sent;
  {
    std::jthread stopper([&] {
      for (int tries = 0; tries < 30000 && !(process != 0 && now(process)); ++tries) {
        std::this_thread::sleep_for(std::chrono::milliseconds(process == 0 ? 20 : 2));
        if (process == 0) process = process_of(run, rank);
      }
      if (process != 0) kill(process, signal);
      sent = std::chrono::steady_clock::now();
    });
    hang.result = shell(
        environment + mpirun() + "-np " + std::to_string(ranks) + " " + exe() + " train " + run + " " + more, 200);
  }
  hang.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - sent).count();
  if (process != 0) kill(process, SIGKILL);
  return hang;
}

bool is_there(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::string stops(int rank) { return "[watchdog] rank " + std::to_string(rank) + " "; }

}  // namespace

TEST_CASE("a rank that stops before the first step is named within the limit of the start", "[cli]") {
  if (!has_mpirun()) return;
  for (const int stopped : {1, 0}) {
    Folder folder;
    const std::string run = run_file(folder);
    const Hang stuck = hang(3, run, "--set train.global_batch_size=6 --set comm.start_timeout_seconds=3", stopped,
                            SIGSTOP, [&](pid_t) { return is_there(folder.path("run") + "/lock"); });
    check_refused(stuck.result, 6, {stops(stopped), "does not answer", "comm.start_timeout_seconds"});
    CHECK(stuck.seconds < 3 + kMarginSeconds);
  }
}

TEST_CASE("a process that never starts MPI is noticed within the limit of the start", "[cli]") {
  if (!has_mpirun()) return;
  for (const std::string other : {"sleep 300", "true"}) {
    Folder folder;
    const std::string train = run_file(folder) + " --set train.global_batch_size=6 --set comm.start_timeout_seconds=3";
    const auto begun = std::chrono::steady_clock::now();
    const Result result = shell(mpirun() + "-np 1 " + exe() + " train " + train + " : -np 1 " + other, 100);
    INFO(other << "\n" << result.text);
    CHECK(result.code != 0);
    if (other != "true") check_refused(result, 6, {"the start of MPI", "comm.start_timeout_seconds"});
    CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count() < 3 + kMarginSeconds);
  }
}

TEST_CASE("a rank that stops in a step is named with the task of the others, and why repeats it", "[cli]") {
  if (!has_mpirun()) return;
  // The clock of rank 1's host is an hour late.
  const std::string clock = "LD_PRELOAD=" + faults_library() + " SLIPSTREAM_CLOCK=-3600@0 SLIPSTREAM_CLOCK_RANK=1 ";
  for (const int stopped : {2, 0}) {
    Folder folder;
    const std::string run = run_file(folder), dir = folder.path("run");
    const Hang stuck = hang(
        3, run,
        "--set train.global_batch_size=6 --set train.steps=1000000 --set train.log_interval=100000 "
        "--set comm.timeout_seconds=3",
        stopped, SIGSTOP, [&](pid_t) { return trains(dir); }, clock);
    check_refused(stuck.result, 6, {stops(stopped), "does not answer"});
    CHECK(stuck.seconds < 3 + kMarginSeconds);
    for (int rank = 0; rank < 3; ++rank)
      if (rank != stopped) CHECK(!contains(stuck.result.text, stops(rank)));
    const Result why = call("why " + dir);
    INFO(why.text);
    CHECK(why.code == 0);
    CHECK(contains(why.text, stops(stopped)));
    CHECK(contains(why.text, "the limit is 3 s (comm."));
    REQUIRE(call("report " + dir).code == 0);
    const std::string page = read(dir + "/report.html");
    CHECK(contains(page, "\"stall\""));
    CHECK(contains(page, stops(stopped)));
    CHECK(contains(page, "does not answer"));
  }
}

TEST_CASE("a rank that stops in the final save is named within the limit of saving", "[cli]") {
  if (!has_mpirun()) return;
  for (const int stopped : {1, 0}) {
    Folder folder;
    const std::string run = run_file(folder), dir = folder.path("run");
    // Both ranks hold parts of the weights, which take a second to write.
    const Hang stuck =
        hang(2, run,
             "--set zero.stage=3 --set train.steps=1 --set train.eval_batches=0 --set model.width=768 --set "
             "model.heads=8 --set model.layers=4 --set comm.timeout_seconds=600 --set "
             "comm.save_timeout_seconds=3 --set comm.start_timeout_seconds=600",
             stopped, SIGSTOP, [&](pid_t) {
               std::error_code error;
               for (const fs::directory_entry& entry : fs::directory_iterator(dir + "/checkpoints", error))
                 if (contains(entry.path().filename().string(), "final")) return true;
               return false;
             });
    check_refused(stuck.result, 6, {stops(stopped), "does not answer", "comm.save_timeout_seconds"});
    CHECK(stuck.seconds < 3 + kMarginSeconds);
  }
}

TEST_CASE("slow ranks are no alarm while each wait is shorter than the limit", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder);
  // Rank 1 is stopped again and again, each time for less than the limit, and together for longer.
  Result result;
  {
    std::jthread job([&] {
      result = shell(
          mpirun() + "-np 2 " + exe() + " train " + run + " --set train.steps=1500 --set comm.timeout_seconds=8", 200);
    });
    pid_t process = 0;
    for (int tries = 0; tries < 600 && !(process != 0 && is_there(folder.path("run") + "/run.json")); ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (process == 0) process = process_of(run, 1);
    }
    REQUIRE(process != 0);
    for (int i = 0; i < 5; ++i) {
      kill(process, SIGSTOP);
      std::this_thread::sleep_for(std::chrono::milliseconds(1700));
      kill(process, SIGCONT);
      std::this_thread::sleep_for(std::chrono::milliseconds(400));  // longer than a step takes, on a busy machine too
    }
  }
  INFO(result.text);
  CHECK(result.code == 0);
  CHECK(!contains(result.text, "[watchdog]"));
  CHECK(!is_there(folder.path("run") + "/flight"));
  check_refused(call("why " + folder.path("run")), 3, {"has no flight records"});
}

TEST_CASE("a rank that is killed ends the job, and a record of it names that rank", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder), dir = folder.path("run");
  const Hang killed = hang(2, run, "--set train.steps=1000000 --set train.log_interval=1", 1, SIGKILL,
                           [&](pid_t) { return trains(dir); });
  CHECK(killed.result.code != 0);
  CHECK(killed.seconds < kMarginSeconds);
  // The launcher may end rank 0 before it writes.
  const Result why = call("why " + dir);
  INFO(why.text);
  if (why.code == 0) {
    CHECK(contains(why.text, stops(1)));
    CHECK(contains(why.text, "has ended without notice"));
  } else {
    check_refused(why, 3, {"has no flight records"});
  }
}

TEST_CASE("why refuses damaged records in one sentence", "[cli]") {
  Folder folder;
  fs::create_directories(folder.path("run/flight"));
  check_refused(call("why " + folder.path("run")), 3, {"has no flight records"});
  folder.write("run/flight/rank0000.json", "{\"rank\": 0,");
  const Result damaged = call("why " + folder.path("run"));
  check_refused(damaged, 3, {"rank0000.json"});
  CHECK(count(damaged.text, "slipstream: ") == 1);
}

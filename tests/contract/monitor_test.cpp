// SPDX-License-Identifier: Apache-2.0
// Monitors of several ranks in one process, over a real side channel.

#include "comm/monitor.h"

#include <atomic>
#include <filesystem>
#include <thread>

#include "comm/verdict.h"
#include "engine/base/check.h"
#include "tests/test.hpp"

using namespace slipstream;
using comm::Monitor;
using comm::RunPhase;
using comm::SideChannel;

namespace {

struct Ranks {
  explicit Ranks(int count, int without = -1)
      : folder((std::filesystem::temp_directory_path() / fmt::format("slipstream_monitor_{}", ::getpid())).string()),
        left(static_cast<size_t>(count)) {
    std::filesystem::remove_all(folder);
    auto listening = SideChannel::listen(count, true, "token");
    const std::string addresses = listening->addresses();
    REQUIRE(!addresses.empty());
    for (int rank = 0; rank < count; ++rank) {
      monitors.push_back(std::make_unique<Monitor>(rank, [this, rank] { left[static_cast<size_t>(rank)] = true; }));
      monitors.back()->write_to(folder);
      if (rank == without) continue;
      monitors.back()->connect(rank, count, "token", comm::unix_ms(), addresses, true,
                               rank == 0 ? std::move(listening) : nullptr);
    }
  }
  ~Ranks() {
    monitors.clear();
    std::filesystem::remove_all(folder);
  }
  void limit(const comm::WaitLimits& limits) {
    for (const auto& monitor : monitors) monitor->limit(limits);
  }
  void wait_for(const std::vector<int>& ranks) {
    for (int tries = 0; tries < 1200; ++tries) {
      if (std::all_of(ranks.begin(), ranks.end(), [&](int r) { return left[static_cast<size_t>(r)].load(); })) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    FAIL("the ranks did not leave");
  }

  std::string folder;
  std::vector<std::atomic<bool>> left;
  std::vector<std::unique_ptr<Monitor>> monitors;
};

}  // namespace

TEST_CASE("monitor: the rank that misses an exchange is named, and all ranks leave with a record", "[comm]") {
  Ranks ranks(3);
  ranks.limit({.start_seconds = 1});
  for (const auto& monitor : ranks.monitors) {
    monitor->begin("settings");
    monitor->end();
  }
  ranks.monitors[0]->begin("weights");
  ranks.monitors[2]->begin("weights");
  ranks.wait_for({0, 1, 2});
  const std::vector<comm::FlightRecord> records = comm::read_flight(ranks.folder);
  REQUIRE(records.size() == 3);
  const comm::Verdict verdict = comm::judge(records);
  INFO(verdict.sentence);
  CHECK(verdict.kind == comm::Verdict::Kind::behind);
  CHECK(verdict.ranks == std::vector<int>{1});
  CHECK(verdict.sentence.find("has not begun the exchange of weights") != std::string::npos);
  CHECK(verdict.sentence.find("comm.start_timeout_seconds") != std::string::npos);
}

TEST_CASE("monitor: a rank that does not answer is silent", "[comm]") {
  Ranks ranks(3, 1);
  ranks.limit({.start_seconds = 1000, .save_seconds = 1});
  ranks.monitors[0]->enter(RunPhase::step);
  ranks.monitors[1]->enter(RunPhase::step);
  ranks.monitors[2]->enter(RunPhase::save);
  ranks.monitors[2]->begin("weights");
  ranks.wait_for({0, 2});
  const comm::Verdict verdict = comm::judge(comm::read_flight(ranks.folder));
  INFO(verdict.sentence);
  CHECK(verdict.kind == comm::Verdict::Kind::silent);
  CHECK(verdict.ranks == std::vector<int>{1});
  CHECK(verdict.sentence.find("comm.save_timeout_seconds") != std::string::npos);
}

TEST_CASE("monitor: without rank 0 a rank leaves by itself and names rank 0", "[comm]") {
  Ranks ranks(2, 0);
  ranks.limit({.start_seconds = 1000, .step_seconds = 1});
  for (const auto& monitor : ranks.monitors) monitor->enter(RunPhase::step);
  ranks.monitors[1]->begin("the times of steps");
  ranks.wait_for({1});
  const comm::Verdict verdict = comm::judge(comm::read_flight(ranks.folder));
  INFO(verdict.sentence);
  CHECK(verdict.ranks == std::vector<int>{0});
  CHECK(verdict.sentence.find("Rank 1 has waited") != std::string::npos);
  CHECK_FALSE(ranks.left[0]);
}

TEST_CASE("monitor: waits that end in time, computing and long steps are no alarm", "[comm]") {
  Ranks ranks(2);
  ranks.limit({.start_seconds = 2, .step_seconds = 2, .save_seconds = 2});
  // Together these last longer than the limit.
  for (int i = 0; i < 8; ++i) {
    for (const auto& monitor : ranks.monitors) monitor->begin("settings");
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    for (const auto& monitor : ranks.monitors) monitor->end();
  }
  for (const auto& monitor : ranks.monitors) monitor->enter(RunPhase::step);
  std::this_thread::sleep_for(std::chrono::milliseconds(3500));
  for (const auto& left : ranks.left) CHECK_FALSE(left);
  CHECK_FALSE(std::filesystem::exists(ranks.folder));
}

TEST_CASE("monitor: a late transfer is an alarm with its works", "[comm]") {
  Ranks ranks(2);
  const auto channel = [](bool begun) {
    return comm::FlightState{
        .channels = {{.name = "reduce",
                      .group = "reduce 0",
                      .ended = 4,
                      .begun = begun,
                      .next =
                          comm::FlightWork{.name = "reduce.1", .op = "all_reduce", .bytes = 8, .bucket = 1, .step = 3},
                      .held_by = begun ? "" : "backward.1 on channel compute"}},
        .step = 3};
  };
  for (size_t r = 0; r < 2; ++r) {
    ranks.monitors[r]->enter(RunPhase::step);
    ranks.monitors[r]->show([=] { return channel(r == 1); });
  }
  std::thread stream([&] { ranks.monitors[1]->alarm("[comm] all_reduce: rank 1 waited"); });
  ranks.wait_for({0, 1});
  const comm::Verdict verdict = comm::judge(comm::read_flight(ranks.folder));
  INFO(verdict.sentence);
  CHECK(verdict.ranks == std::vector<int>{0});
  CHECK(verdict.sentence.find("has not begun reduce.1") != std::string::npos);
  CHECK(verdict.sentence.find("at backward.1 on channel compute") != std::string::npos);
  ranks.monitors.clear();
  stream.join();
}

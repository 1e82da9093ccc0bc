// SPDX-License-Identifier: Apache-2.0
// The watchdog ends waits that would last forever, and nothing else.

#include "comm/watchdog.h"

#include <atomic>
#include <future>

#include "comm/imitated_communicator.h"
#include "engine/base/check.h"
#include "tests/test.hpp"

using namespace slipstream;
using comm::Watchdog;

namespace {

/// A wire whose works hang until they are aborted, with errors set by the test. Its abort may wait for another's, as
/// NCCL's does when it frees memory while the other's operations are on the device.
class Wire final : public comm::Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  Work all_reduce(const comm::Transfer&) override { return {}; }
  Work reduce_scatter(const comm::Transfer&) override { return {}; }
  Work all_gather(const comm::Transfer&) override { return {}; }
  Work all_to_all(const comm::Transfer&) override { return {}; }
  Work all_to_all_v(const comm::RoutedTransfer&) override { return {}; }
  Work send(const comm::Transfer&, int) override { return {}; }
  Work recv(const comm::Transfer&, int) override { return {}; }
  Work exchange(const comm::Transfer&, int, int) override { return {}; }
  void abort() override {
    if (aborted.exchange(true)) return;
    ended_.set_value();
    while (waits_for && !waits_for->aborted) std::this_thread::yield();
    while (stands) std::this_thread::yield();
  }
  void check_for_errors() override {
    ++checks;
    if (broken) throw CommError("[nccl] reduce: work in flight failed: remote process exited.");
  }
  void hang() { ended_.get_future().wait(); }

  std::atomic<bool> broken{false}, aborted{false}, stands{false};
  Wire* waits_for = nullptr;
  std::atomic<int> checks{0};

 private:
  std::promise<void> ended_;
};

std::string in_flight() { return "all_reduce of 7 float32 on channel reduce"; }
const comm::WatchdogOptions kFast{.timeout_seconds = 600, .poll = std::chrono::milliseconds(1)};

}  // namespace

TEST_CASE("an error of the wire ends the wait with its message and the work in flight") {
  Wire wire, other;
  Watchdog watchdog({&other, nullptr, &wire}, in_flight, kFast);
  CHECK_THROWS_WITH(watchdog.watch([&] {
    wire.broken = true;
    wire.hang();
  }),
                    Catch::Contains("remote process exited") &&
                        Catch::Contains("In flight: all_reduce of 7 float32 on channel reduce."));
  while (!other.aborted) std::this_thread::yield();  // it is aborted on a separate thread
  // The error is thrown again, and nothing waits any more.
  CHECK_THROWS_AS(watchdog.watch([] { FAIL("waited"); }), CommError);
  CHECK_THROWS_AS(watchdog.rethrow(), CommError);
}

TEST_CASE("a wait that is too long names the work in flight and what to do") {
  Wire wire;
  Watchdog watchdog({&wire}, in_flight, {.timeout_seconds = 0.02, .poll = std::chrono::milliseconds(1)});
  CHECK_THROWS_WITH(watchdog.watch([&] { wire.hang(); }),
                    Catch::Contains("all_reduce of 7 float32 on channel reduce has not ended within 0.02 s") &&
                        Catch::Contains("comm.timeout_seconds"));
  CHECK(wire.aborted);
}

TEST_CASE("a wait that is too long is reported before the communicators are aborted") {
  Wire wire;
  std::string reported;
  comm::WatchdogOptions options{.timeout_seconds = 0.02, .poll = std::chrono::milliseconds(1)};
  options.late = [&](const std::string& sentence) {
    CHECK_FALSE(wire.aborted);
    reported = sentence;
  };
  Watchdog watchdog({&wire}, in_flight, options);
  CHECK_THROWS_AS(watchdog.watch([&] { wire.hang(); }), CommError);
  CHECK_THAT(reported, Catch::Contains("all_reduce of 7 float32 on channel reduce has not ended within 0.02 s"));
}

TEST_CASE("a host that cannot issue work gets the same error without a query of the work in flight") {
  Wire wire;
  const auto in_flight_now = [] {
    FAIL("asked");
    return std::string();
  };
  Watchdog watchdog({&wire}, in_flight_now, {.timeout_seconds = 0.02, .poll = std::chrono::milliseconds(1)});
  CHECK_THROWS_WITH(
      watchdog.watch_issue([&] { wire.hang(); }),
      Catch::Contains("the work in flight has not ended within 0.02 s") && Catch::Contains("comm.timeout_seconds"));
  CHECK(wire.aborted);
}

TEST_CASE("waits that end in time are not aborted, and their own errors pass through") {
  Wire wire;
  Watchdog watchdog({&wire}, in_flight, kFast);
  for (int i = 0; i < 100; ++i) watchdog.watch([] {});
  CHECK_THROWS_WITH(watchdog.watch([] { throw ResourceError("[cuda] lost"); }), Catch::Contains("[cuda] lost"));
  while (wire.checks == 0) std::this_thread::yield();
  watchdog.rethrow();
  CHECK_FALSE(wire.aborted);
}

TEST_CASE("an error between waits is found, too") {
  Wire wire;
  Watchdog watchdog({&wire}, in_flight, kFast);
  wire.broken = true;
  while (!wire.aborted) std::this_thread::yield();
  CHECK_THROWS_AS(watchdog.watch([] {}), CommError);
}

TEST_CASE("communicators whose aborts wait for each other are all aborted") {
  Wire first, second;
  first.waits_for = &second;
  second.waits_for = &first;
  Watchdog watchdog({&first, &second}, in_flight, kFast);
  second.broken = true;
  CHECK_THROWS_AS(watchdog.watch([&] { first.hang(); }), CommError);
}

TEST_CASE("a failure reported by another rank aborts, and the first message is kept") {
  Wire wire;
  Watchdog watchdog({&wire}, in_flight, kFast);
  CHECK_THROWS_WITH(watchdog.watch([&] {
    watchdog.give_up("[cuda] lost.");
    wire.hang();
    watchdog.give_up("[comm] a consequence.");
  }),
                    Catch::Contains("[cuda] lost."));
  CHECK_THROWS_WITH(watchdog.rethrow(), Catch::Contains("[cuda] lost."));
}

TEST_CASE("a device that stays blocked after an abort ends the process with the message while the host waits for it") {
  Wire wire;
  std::promise<std::string> left;
  std::atomic<bool> may_leave{false};
  comm::WatchdogOptions options{.poll = std::chrono::milliseconds(1), .patience_seconds = 0.02};
  options.leave = [&](const std::string& sentence, ExitCode code) {
    if (!wire.stands.exchange(false)) return;
    CHECK(code == ExitCode::resources);
    CHECK(may_leave);
    left.set_value(sentence);
  };
  {
    wire.stands = true;
    Watchdog watchdog({&wire}, in_flight, options);
    watchdog.give_up("[nccl] reduce: a peer is gone.", ExitCode::resources);
    while (!wire.aborted) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(60));  // as long as saving weights may take
    may_leave = true;
  }
  const std::string sentence = left.get_future().get();
  CHECK(sentence.find("[nccl] reduce: a peer is gone. ") == 0);
  CHECK(sentence.find("did not become free within 0.02 s") != std::string::npos);
}

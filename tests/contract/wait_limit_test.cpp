// SPDX-License-Identifier: Apache-2.0
// A wait over the limit is reported once; a wait that ends in time is left alone.

#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>

#include "comm/wait_limit.h"
#include "tests/test.hpp"

using slipstream::comm::WaitLimit;

TEST_CASE("wait_limit: a wait over the limit is named, once, while it still lasts", "[comm]") {
  std::promise<std::string> named;
  std::atomic<int> calls{0};
  {
    WaitLimit limit(0.05, [&](const std::string& awaited) {
      if (++calls == 1) named.set_value(awaited);
    });
    limit.watch("the times of steps", [&] {
      CHECK(named.get_future().get() == "the times of steps");
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
    });
    limit.watch("something short", [] {});
  }
  CHECK(calls == 1);
}

TEST_CASE("wait_limit: waits that end in time are not reported, and their exceptions pass through", "[comm]") {
  std::atomic<int> calls{0};
  WaitLimit limit(0.5, [&](const std::string&) { ++calls; });
  // Together longer than the limit.
  for (int i = 0; i < 8; ++i)
    limit.watch("a turn", [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
  CHECK_THROWS_AS(limit.watch("a failure", [] { throw std::runtime_error("gone"); }), std::runtime_error);
  std::this_thread::sleep_for(std::chrono::milliseconds(600));  // no thread waits
  CHECK(calls == 0);
}

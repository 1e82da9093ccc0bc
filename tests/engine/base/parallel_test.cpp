// SPDX-License-Identifier: Apache-2.0
// Ranges that threads share: every index runs once, and a caller takes the parts of late workers.

#include "engine/base/parallel.h"

#include <atomic>
#include <vector>

#include "tests/test.hpp"

using namespace slipstream;

namespace {

constexpr int kThreads = 8;  // more than cores, so that some are late
constexpr int64_t kCount = 801;

/// Runs short ranges. Returns how many parts the caller has run in addition to its own.
int64_t parts_of_others(ThreadPool& pool, int rounds) {
  int64_t others = 0;
  const std::thread::id caller = std::this_thread::get_id();
  for (int round = 0; round < rounds; ++round) {
    std::vector<int> seen(kCount);
    std::atomic<int64_t> mine{0};
    pool.parallel_for(kCount, 1, [&](int64_t begin, int64_t end) {
      if (std::this_thread::get_id() == caller) ++mine;
      for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
    });
    REQUIRE(seen == std::vector<int>(kCount, 1));
    REQUIRE(mine >= 1);
    others += mine - 1;
  }
  return others;
}

}  // namespace

TEST_CASE("parallel: every index runs once, and the caller runs the parts of late workers", "[base]") {
  ThreadPool pool(kThreads);
  CHECK(parts_of_others(pool, 3000) > 0);
}

TEST_CASE("parallel: the part of a worker whose core is taken does not hold the range up", "[base]") {
  // The body of the first range that a worker begins waits for the end of all others, as if its thread had lost its
  // core. The others must end without it, whichever threads the system has given a core.
  ThreadPool pool(kThreads);
  const std::thread::id caller = std::this_thread::get_id();
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> ended{0};
    std::atomic<bool> held{false};
    pool.parallel_for(kThreads, 1, [&](int64_t, int64_t) {
      if (std::this_thread::get_id() != caller && !held.exchange(true))
        while (ended < kThreads - 1) std::this_thread::yield();
      ++ended;
    });
    REQUIRE(ended == kThreads);
  }
}

TEST_CASE("parallel: an error of a part of a late worker reaches the caller, and the pool goes on", "[base]") {
  ThreadPool pool(kThreads);
  for (int round = 0; round < 300; ++round) {
    CHECK_THROWS_AS(pool.parallel_for(kThreads, 1,
                                      [&](int64_t begin, int64_t) {
                                        if (begin == round % kThreads) throw 5;
                                      }),
                    int);
    std::atomic<int64_t> sum{0};
    pool.parallel_for(kThreads, 1, [&](int64_t begin, int64_t) { sum += begin; });
    CHECK(sum == kThreads * (kThreads - 1) / 2);
  }
}

// SPDX-License-Identifier: Apache-2.0
// Conversion between clocks: hours of drift in virtual time, and the law that no answer goes back.

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/device/clock_map.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {
constexpr int64_t kSecond = 1'000'000'000, kStart = 123 * kSecond;
}

TEST_CASE("clock_map: after twelve hours of drift the error is within the bounds of the readings", "[device]") {
  for (double ppm : {-50.0, -7.0, 0.0, 7.0, 50.0}) {
    std::mt19937_64 random(42);
    const auto below = [&](int64_t limit) { return static_cast<int64_t>(random() % static_cast<uint64_t>(limit)); };
    const auto theirs_at = [&](int64_t ours_ns) {
      return ours_ns - kStart + std::llround(ppm * 1e-6 * static_cast<double>(ours_ns - kStart));
    };
    ClockMap map(0, kStart + 5'000);
    int64_t largest_error_ns = 0, last_ns = 0;
    for (int64_t now = kStart + kSecond; now < kStart + 12 * 3600 * kSecond; now += kSecond) {
      for (int64_t before_ns : {900'000'000, 500'000'000, 100}) {
        const int64_t answer = map.at_ns(theirs_at(now - before_ns));
        CHECK(answer >= last_ns);
        last_ns = answer;
        if (now > kStart + 10 * kSecond)
          largest_error_ns = std::max(largest_error_ns, std::abs(answer - (now - before_ns)));
      }
      // Some readings are observed late: a wide bracket proves little, and moves the line only that far.
      const int64_t early = below(20'000), late = below(10) == 0 ? below(5'000'000) : below(20'000);
      map.correct(theirs_at(now), now - early, now + late);
    }
    INFO(ppm << " ppm: " << largest_error_ns << " ns");
    CHECK(largest_error_ns < 20'000 + std::llround(std::abs(ppm) * 1e-6 * 6 * kSecond));
  }
}

TEST_CASE("clock_map: an estimate inside the bracket of a reading stays", "[device]") {
  ClockMap map(0, kStart);
  map.correct(kSecond, kStart + kSecond - 1000, kStart + kSecond + 1'000'000);
  CHECK(map.at_ns(kSecond) == kStart + kSecond);
  CHECK(map.at_ns(5 * kSecond) == kStart + 5 * kSecond);
}

TEST_CASE("clock_map: small errors are corrected over one second", "[device]") {
  for (int64_t error_ns : {-100'000, 100'000}) {
    ClockMap map(0, kStart);
    map.correct(kSecond, kStart + kSecond + error_ns, kStart + kSecond + error_ns);
    CHECK(map.at_ns(kSecond) == kStart + kSecond);
    CHECK(map.at_ns(kSecond + kSecond / 2) == kStart + kSecond + kSecond / 2 + error_ns / 2);
    for (int64_t s : {2, 3, 3600}) CHECK(map.at_ns(s * kSecond) == kStart + s * kSecond + error_ns);
    // A span of a millisecond stays a millisecond.
    CHECK(std::abs(map.at_ns(kSecond + 2'000'000) - map.at_ns(kSecond + 1'000'000) - 1'000'000) <= 200);
  }
}

TEST_CASE("clock_map: large errors are corrected at once; a clock that was ahead stands still", "[device]") {
  ClockMap behind(0, kStart);
  behind.correct(kSecond, kStart + 3 * kSecond, kStart + 3 * kSecond + 10);
  CHECK(behind.at_ns(kSecond - 1) == kStart + kSecond - 1);
  CHECK(behind.at_ns(kSecond) == kStart + 3 * kSecond);
  ClockMap ahead(0, kStart);
  CHECK(ahead.at_ns(kSecond + 5000) == kStart + kSecond + 5000);  // asked before the reading was seen
  ahead.correct(kSecond, kStart + kSecond - 10'000'000, kStart + kSecond - 10'000'000);
  CHECK(ahead.at_ns(kSecond + 5000) == kStart + kSecond + 5000);
  CHECK(ahead.at_ns(kSecond + 9'000'000) == kStart + kSecond + 5000);
  CHECK(ahead.at_ns(kSecond + 20'000'000) == kStart + kSecond + 10'000'000);
}

TEST_CASE("clock_map: times never decrease, whatever the readings", "[device]") {
  std::mt19937_64 random(7);
  const auto below = [&](int64_t limit) { return static_cast<int64_t>(random() % static_cast<uint64_t>(limit)); };
  ClockMap map(0, kStart);
  int64_t theirs_ns = 0, last_ns = kStart;
  for (int i = 0; i < 100'000; ++i) {
    theirs_ns += below(1'000'000);
    if (below(3) == 0) {
      const int64_t about_ns = kStart + theirs_ns + below(2'000'000) - 1'000'000;
      map.correct(theirs_ns - below(1000), about_ns - below(100'000), about_ns + below(100'000));
    }
    const int64_t answer = map.at_ns(theirs_ns);
    CHECK(answer >= last_ns);
    last_ns = answer;
  }
}

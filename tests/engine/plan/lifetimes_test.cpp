// SPDX-License-Identifier: Apache-2.0
// The laws of lifetimes on random ones, compared with a count at every position.

#include <algorithm>
#include <random>

#include "engine/plan/lifetimes.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

constexpr Position kPositions = 40;

struct Random {
  std::mt19937 engine;
  int operator()(int below) { return static_cast<int>(engine() % static_cast<unsigned>(below)); }
};

std::vector<Lifetime> random_lives(Random& random, int count) {
  std::vector<Lifetime> lives;
  for (int i = 0; i < count; ++i) {
    const auto first = static_cast<Position>(random(kPositions));
    lives.push_back(
        {static_cast<BufferId>(i), first, first + static_cast<Position>(random(static_cast<int>(kPositions - first)))});
  }
  return lives;
}

bool is_alive(const Lifetime& life, Position at) { return life.first_use <= at && at <= life.last_use; }

}  // namespace

TEST_CASE("as many slots as lifetimes alive at once suffice, and a tenant leaves after its last use") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Random random{std::mt19937(seed)};
    std::vector<Lifetime> lives = random_lives(random, 1 + random(20));
    std::ptrdiff_t most = 0;
    for (Position at = 0; at < kPositions; ++at)
      most =
          std::max(most, std::count_if(lives.begin(), lives.end(), [&](const Lifetime& l) { return is_alive(l, at); }));
    CHECK(most_alive(lives) == most);
    std::sort(lives.begin(), lives.end(),
              [](const Lifetime& a, const Lifetime& b) { return a.first_use < b.first_use; });
    Slots slots(static_cast<size_t>(most));
    for (const Lifetime& life : lives) {
      const Slots::Lease lease = slots.lease(life.buffer, life.last_use);
      CHECK(lease.moved_in);
      if (lease.previous) CHECK(lease.previous->last_use < life.first_use);
      CHECK_FALSE(slots.lease(life.buffer, life.last_use).moved_in);
    }
  }
}

TEST_CASE("packed buffers share no byte while both are alive, and need no less than the bytes alive at once") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Random random{std::mt19937(seed)};
    std::vector<Packed> buffers;
    int64_t sum = 0, most = 0;
    for (int i = 0, count = 1 + random(12); i < count; ++i) {
      buffers.push_back({.buffer = static_cast<BufferId>(i),
                         .size_bytes = 64 * (1 + random(9)),
                         .lives = random_lives(random, 1 + random(3))});
      sum += buffers.back().size_bytes;
    }
    const auto alive = [](const Packed& buffer, Position at) {
      return std::any_of(buffer.lives.begin(), buffer.lives.end(), [&](const Lifetime& l) { return is_alive(l, at); });
    };
    const int64_t total = pack(buffers);
    for (Position at = 0; at < kPositions; ++at) {
      int64_t bytes = 0;
      for (const Packed& a : buffers) {
        if (!alive(a, at)) continue;
        bytes += a.size_bytes;
        CHECK(a.begin_bytes + a.size_bytes <= total);
        for (const Packed& b : buffers)
          if (a.buffer != b.buffer && alive(b, at))
            CHECK((a.begin_bytes + a.size_bytes <= b.begin_bytes || b.begin_bytes + b.size_bytes <= a.begin_bytes));
      }
      most = std::max(most, bytes);
    }
    CHECK((most <= total && total <= sum));
  }
}

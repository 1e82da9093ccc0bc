// SPDX-License-Identifier: Apache-2.0
// Sums of imitated ranks, message by message: only the rank with the slow link measures the delay.

#include "comm/host/link_clock.h"

#include <algorithm>
#include <random>
#include <tuple>

#include "tests/test.hpp"

using namespace slipstream::comm;

TEST_CASE("A sum of ranks: the slow sender measures its delay, and no rank a late entry or a slow peer") {
  const int seed = GENERATE(range(0, 100));
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  const auto below = [&](int64_t limit) { return static_cast<int64_t>(random() % static_cast<uint64_t>(limit)); };
  const int ranks = 2 + static_cast<int>(below(6));
  const int slow = static_cast<int>(below(ranks));
  constexpr int64_t kQuickNs = 10, kSlowNs = 10'000;
  CAPTURE(seed, ranks, slow);
  std::vector<int64_t> entry;
  for (int r = 0; r < ranks; ++r) entry.push_back(below(100'000));
  const auto takes_ns = [&](int r) { return r == slow ? kSlowNs : kQuickNs; };
  enum What { kRecvPosted, kSendPosted, kRecvEnded, kSendEnded };
  std::vector<std::vector<std::tuple<int64_t, What, int>>> events(static_cast<size_t>(ranks));
  const auto note = [&](int rank, int64_t at, What what, int peer) {
    events[static_cast<size_t>(rank)].emplace_back(at, what, peer);
  };
  std::vector<int64_t> summed = entry;  // all contributions have arrived
  const auto message = [&](int from, int to, int64_t posted) {
    const int64_t arrives = std::max(posted, entry[static_cast<size_t>(to)]) + takes_ns(from);
    note(from, posted, kSendPosted, to);
    note(from, arrives, kSendEnded, to);
    note(to, arrives, kRecvEnded, from);
    return arrives;
  };
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to) {
      if (from == to) continue;
      note(to, entry[static_cast<size_t>(to)], kRecvPosted, from);
      int64_t& sum = summed[static_cast<size_t>(to)];
      sum = std::max(sum, message(from, to, entry[static_cast<size_t>(from)]));
    }
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to)
      if (from != to) message(from, to, summed[static_cast<size_t>(from)]);
  for (int r = 0; r < ranks; ++r) {
    auto& own = events[static_cast<size_t>(r)];
    std::sort(own.begin(), own.end());
    LinkClock clock(ranks);
    clock.begin();
    for (const auto& [at, what, peer] : own) {
      if (what == kRecvPosted) clock.recv_posted(peer, at);
      if (what == kSendPosted) clock.send_posted(at);
      if (what == kRecvEnded) clock.recv_ended(peer, at);
      if (what == kSendEnded) clock.send_ended(at);
    }
    if (r == slow)
      CHECK(clock.total_ns() >= kSlowNs - kQuickNs);
    else
      CHECK(clock.total_ns() <= 4 * kQuickNs);
  }
}

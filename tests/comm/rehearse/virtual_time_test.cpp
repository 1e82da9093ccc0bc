// SPDX-License-Identifier: Apache-2.0
// The solver against a fixed-point oracle, a fluid model of a shared port, and deadlocks that must be named.

#include "comm/rehearse/virtual_time.h"

#include <cmath>
#include <random>

#include "tests/test.hpp"

using namespace slipstream::comm;

namespace {

struct RandomGraph {
  struct Edge {
    uint32_t from, to;
    After after;
  };
  std::vector<int64_t> duration_ns;
  std::vector<int> rendezvous;  // -1: a local item
  std::vector<Edge> edges;
};

/// Edges and rendezvous both follow one hidden order, so every graph has a solution.
RandomGraph random_graph(std::mt19937_64& random) {
  auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  RandomGraph g;
  const size_t steps = 2 + below(30);
  std::vector<std::vector<uint32_t>> nodes_of_step;
  int rendezvous_ids = 0;
  for (size_t s = 0; s < steps; ++s) {
    const size_t members = below(3) == 0 ? 2 + below(3) : 1;
    const int rendezvous = members > 1 || below(4) == 0 ? rendezvous_ids++ : -1;
    const auto duration_ns = static_cast<int64_t>(1 + below(50));
    nodes_of_step.emplace_back();
    for (size_t m = 0; m < members; ++m) {
      const auto node = static_cast<uint32_t>(g.duration_ns.size());
      nodes_of_step.back().push_back(node);
      g.duration_ns.push_back(duration_ns);
      g.rendezvous.push_back(rendezvous);
      for (size_t e = below(4); e-- > 0 && s > 0;) {
        const auto& earlier = nodes_of_step[below(s)];
        g.edges.push_back({earlier[below(earlier.size())], node, below(3) ? After::end : After::enter});
      }
    }
  }
  return g;
}

/// Relaxes the times of entering, start and end until nothing changes.
std::vector<int64_t> fixed_point_ends(const RandomGraph& g) {
  const size_t n = g.duration_ns.size();
  std::vector<int64_t> entered(n, 0), end(n, 0);
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& e : g.edges) {
      const int64_t bound = e.after == After::end ? end[e.from] : entered[e.from];
      if (entered[e.to] < bound) entered[e.to] = bound, changed = true;
    }
    for (size_t i = 0; i < n; ++i) {
      int64_t start = entered[i];
      for (size_t j = 0; j < n; ++j)
        if (g.rendezvous[i] >= 0 && g.rendezvous[j] == g.rendezvous[i]) start = std::max(start, entered[j]);
      if (end[i] != start + g.duration_ns[i]) end[i] = start + g.duration_ns[i], changed = true;
    }
  }
  return end;
}

/// Every member has a port of its own, or one of `ports`.
VirtualTime virtual_time_of(const RandomGraph& g, const VirtualTimeOptions& options, uint32_t ports = UINT32_MAX) {
  VirtualTime time(options);
  std::vector<int64_t> members;
  for (int m : g.rendezvous)
    if (m >= 0) members.resize(std::max(members.size(), static_cast<size_t>(m) + 1)), ++members[static_cast<size_t>(m)];
  std::vector<uint32_t> rendezvous_ids;
  for (int64_t count : members) rendezvous_ids.push_back(time.add_rendezvous(static_cast<uint32_t>(count)));
  for (size_t i = 0; i < g.duration_ns.size(); ++i) {
    if (g.rendezvous[i] < 0)
      time.add_local(g.duration_ns[i]);
    else
      time.join(rendezvous_ids[static_cast<size_t>(g.rendezvous[i])],
                {.port = static_cast<uint32_t>(i) % ports,
                 .latency_ns = g.duration_ns[i] / 2,
                 .wire_ns = g.duration_ns[i] - g.duration_ns[i] / 2});
  }
  for (const auto& e : g.edges) time.edge(e.from, e.to, e.after);
  return time;
}

}  // namespace

TEST_CASE("the end times of random graphs equal those of a fixed-point iteration") {
  const uint64_t seed = 20240611;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 400; ++round) {
    const RandomGraph g = random_graph(random);
    VirtualTime time = virtual_time_of(g, {.contention = false});
    REQUIRE(time.solve());
    const std::vector<int64_t> ends = fixed_point_ends(g);
    for (uint32_t i = 0; i < ends.size(); ++i) REQUIRE(time.end_ns(i) == ends[i]);
  }
}

TEST_CASE("a graph that is solved up to the start of a node has that start, also with shared ports") {
  const uint64_t seed = 20251125;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 100; ++round) {
    const RandomGraph g = random_graph(random);
    VirtualTime whole = virtual_time_of(g, {}, 3);
    REQUIRE(whole.solve());
    for (uint32_t node = 0; node < whole.size(); ++node) {
      VirtualTime part = virtual_time_of(g, {}, 3);
      REQUIRE(part.solve_until_start_of(node));
      REQUIRE(part.start_ns(node) == whole.start_ns(node));
      for (uint32_t i = 0; i < whole.size(); ++i)  // earlier nodes too
        if (part.ended(i)) REQUIRE(part.end_ns(i) == whole.end_ns(i));
    }
  }
  VirtualTime stuck({});
  const uint32_t first = stuck.add_local(5), second = stuck.add_local(5);
  stuck.edge(first, second, After::end), stuck.edge(second, first, After::end);
  CHECK(!stuck.solve_until_start_of(second));
}

TEST_CASE("two transfers on one port take twice as long; opposite directions and other ports do not disturb") {
  struct Case {
    PortUse a, b;
    int64_t end_a, end_b;
  };
  const PortUse both{.wire_ns = 100};
  const PortUse out{.wire_ns = 100, .receives = false};
  const PortUse in{.wire_ns = 100, .sends = false};
  const PortUse other{.port = 1, .wire_ns = 100};
  const PortUse half{.wire_ns = 50};
  const PortUse late{.latency_ns = 60, .wire_ns = 100};
  for (const Case& c : {Case{both, both, 200, 200}, Case{out, in, 100, 100}, Case{out, both, 200, 200},
                        Case{in, in, 200, 200}, Case{in, both, 200, 200}, Case{out, out, 200, 200},
                        Case{both, other, 100, 100}, Case{both, half, 150, 100}, Case{both, late, 140, 200}}) {
    VirtualTime time({});
    const uint32_t a = time.join(time.add_rendezvous(1), c.a);
    const uint32_t b = time.join(time.add_rendezvous(1), c.b);
    REQUIRE(time.solve());
    CHECK(time.end_ns(a) == c.end_a);
    CHECK(time.end_ns(b) == c.end_b);
  }
}

TEST_CASE("a rendezvous ends with its slowest member") {
  VirtualTime time({});
  const uint32_t rendezvous = time.add_rendezvous(2);
  const uint32_t a = time.join(rendezvous, {.port = 0, .wire_ns = 100});
  const uint32_t b = time.join(rendezvous, {.port = 1, .wire_ns = 100});
  time.join(time.add_rendezvous(1), {.port = 1, .wire_ns = 70});  // slows member b alone
  REQUIRE(time.solve());
  CHECK(time.end_ns(a) == 170);
  CHECK(time.end_ns(b) == 170);
}

TEST_CASE("each direction of a shared port follows the fluid model of processor sharing") {
  const uint64_t seed = 77;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    const size_t n = 1 + random() % 6;
    std::vector<double> arrive, left, end(n, -1);
    std::vector<PortUse> uses;
    VirtualTime time({});
    for (size_t i = 0; i < n; ++i) {
      arrive.push_back(static_cast<double>(1 + random() % 500));
      left.push_back(static_cast<double>(1 + random() % 1000));
      const uint64_t direction = random() % 3;
      uses.push_back({.latency_ns = static_cast<int64_t>(arrive[i]),
                      .wire_ns = static_cast<int64_t>(left[i]),
                      .sends = direction != 0,
                      .receives = direction != 1});
      time.join(time.add_rendezvous(1), uses[i]);
    }
    REQUIRE(time.solve());
    double now = 0;
    for (size_t done = 0; done < n;) {
      std::vector<size_t> active;
      double next = 1e18;
      for (size_t i = 0; i < n; ++i) {
        if (end[i] >= 0) continue;
        if (arrive[i] <= now)
          active.push_back(i);
        else
          next = std::min(next, arrive[i]);
      }
      double senders = 0, receivers = 0;
      for (size_t i : active) senders += uses[i].sends, receivers += uses[i].receives;
      const auto sharers = [&](size_t i) {
        return std::max(uses[i].sends ? senders : 0, uses[i].receives ? receivers : 0);
      };
      for (size_t i : active) next = std::min(next, now + left[i] * sharers(i));
      for (size_t i : active) {
        left[i] -= (next - now) / sharers(i);
        if (left[i] < 1e-6) end[i] = next, ++done;
      }
      now = next;
    }
    // Ends are rounded to whole ns, and each rounding can shift later shares by as much.
    for (uint32_t i = 0; i < n; ++i) CHECK(std::abs(static_cast<double>(time.end_ns(i)) - end[i]) <= 2.0);
  }
}

TEST_CASE("every item lasts at least 1 ns") {
  VirtualTime time({});
  const uint32_t a = time.add_local(0);
  const uint32_t b = time.join(time.add_rendezvous(1), {});
  time.edge(a, b, After::end);
  REQUIRE(time.solve());
  CHECK(time.end_ns(a) == 1);
  CHECK(time.end_ns(b) == 2);
}

TEST_CASE("a deadlock is named as its cycle") {
  VirtualTime time({.contention = false});
  time.add_local(5);
  const uint32_t m1 = time.add_rendezvous(2), m2 = time.add_rendezvous(2);
  const uint32_t a1 = time.join(m1, {}), a2 = time.join(m2, {}), b2 = time.join(m2, {}), b1 = time.join(m1, {});
  time.edge(a1, a2, After::end);
  time.edge(b2, b1, After::end);
  REQUIRE_FALSE(time.solve());
  CHECK(time.ended(0));
  const std::vector<Blocked> chain = time.why_stuck();
  REQUIRE(chain.size() == 4);
  CHECK(chain.back().awaited == chain.front().node);
  for (size_t i = 0; i + 1 < chain.size(); ++i) CHECK(chain[i].awaited == chain[i + 1].node);

  VirtualTime lonely({.contention = false});
  const uint32_t only = lonely.join(lonely.add_rendezvous(2), {});
  const uint32_t behind = lonely.add_local(1);
  lonely.edge(only, behind, After::end);
  REQUIRE_FALSE(lonely.solve());
  CHECK(lonely.why_stuck().back().why == Blocked::Why::missing);
  CHECK(lonely.why_stuck().back().node == only);
}

TEST_CASE("a chain of half a million nodes is solved exactly") {
  VirtualTime time({});
  constexpr uint32_t kNodes = 500000;
  for (uint32_t i = 0; i < kNodes; ++i) {
    if (i % 5 == 4)
      time.join(time.add_rendezvous(1), {.port = i % 7, .latency_ns = 1, .wire_ns = 2});
    else
      time.add_local(3);
    if (i > 0) time.edge(i - 1, i, After::end);
    if (i > 10) time.edge(i - 10, i, i % 2 ? After::end : After::enter);
  }
  REQUIRE(time.solve());
  CHECK(time.makespan_ns() == 3 * int64_t{kNodes});
}

namespace {

/// Local work and members with blocks on one card of `multiprocessors`.
struct SharedCard {
  struct Transfer {
    int64_t start_ns, wire_ns;
    int blocks;
  };
  int64_t multiprocessors = 132;
  std::vector<int64_t> work_ns;  // that run one after the other
  std::vector<Transfer> transfers;

  /// Ends of the works, then of the transfers.
  std::vector<int64_t> ends() const {
    VirtualTime time({.multiprocessors = multiprocessors});
    for (uint32_t i = 0; i < work_ns.size(); ++i) {
      time.add_local(work_ns[i], 0);
      if (i > 0) time.edge(i - 1, i, After::end);
    }
    for (uint32_t i = 0; i < transfers.size(); ++i) {
      const uint32_t before = time.add_local(transfers[i].start_ns);
      const PortUse use{.port = i, .wire_ns = transfers[i].wire_ns, .card = 0, .blocks = transfers[i].blocks};
      time.edge(before, time.join(time.add_rendezvous(1), use), After::end);
    }
    REQUIRE(time.solve());
    std::vector<int64_t> all;
    for (uint32_t i = 0; i < work_ns.size(); ++i) all.push_back(time.end_ns(i));
    const auto first = static_cast<uint32_t>(work_ns.size());
    for (uint32_t i = 0; i < transfers.size(); ++i) all.push_back(time.end_ns(first + 2 * i + 1));
    return all;
  }
};

}  // namespace

TEST_CASE("work beside a transfer of c blocks proceeds at (m - c) / m of its speed") {
  // Alone it takes 1000 ns. Of the first 300 ns, 100 are at full speed and 200 at half.
  CHECK(SharedCard{.multiprocessors = 100, .work_ns = {1000}, .transfers = {{100, 200, 50}}}.ends() ==
        std::vector<int64_t>{1100, 300});
  // Two transfers take their blocks together; one multiprocessor is left, whatever they ask for.
  CHECK(
      SharedCard{.multiprocessors = 100, .work_ns = {1000}, .transfers = {{100, 200, 30}, {100, 200, 20}}}.ends()[0] ==
      1100);
  CHECK(SharedCard{.multiprocessors = 100, .work_ns = {1000}, .transfers = {{100, 200, 300}}}.ends()[0] == 1198);
  // The transfer may outlast the work.
  CHECK(SharedCard{.multiprocessors = 132, .work_ns = {1160}, .transfers = {{1, 1 << 20, 16}}}.ends()[0] == 1320);
}

TEST_CASE("transfers without blocks, cards without multiprocessors and other cards slow no work") {
  const std::vector<int64_t> alone{1000, 300};
  CHECK(SharedCard{.work_ns = {1000}, .transfers = {{100, 200, 0}}}.ends() == alone);
  CHECK(SharedCard{.multiprocessors = 0, .work_ns = {1000}, .transfers = {{100, 200, 50}}}.ends() == alone);
  for (const VirtualTimeOptions& options :
       {VirtualTimeOptions{.contention = false, .multiprocessors = 100},
        VirtualTimeOptions{.instant = true, .multiprocessors = 100}, VirtualTimeOptions{.multiprocessors = 100}}) {
    VirtualTime time(options);
    time.add_local(1000, 1);
    time.add_local(1000);
    time.join(time.add_rendezvous(1), {.wire_ns = 500, .card = 0, .blocks = 50});
    REQUIRE(time.solve());
    CHECK((time.end_ns(0) == 1000 && time.end_ns(1) == 1000));
  }
}

TEST_CASE("every work receives its whole time at full speed, whatever transfers take") {
  const uint64_t seed = 4242;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    SharedCard card{.multiprocessors = 8 + static_cast<int64_t>(random() % 200), .work_ns = {}, .transfers = {}};
    for (uint64_t n = 1 + random() % 8; n > 0; --n) card.work_ns.push_back(1 + static_cast<int64_t>(random() % 5000));
    for (uint64_t n = random() % 6; n > 0; --n)
      card.transfers.push_back({1 + static_cast<int64_t>(random() % 9000), 1 + static_cast<int64_t>(random() % 4000),
                                static_cast<int>(random() % 40)});
    const std::vector<int64_t> ends = card.ends();
    // The oracle integrates the speed over every interval between two ends or starts.
    for (size_t w = 0; w < card.work_ns.size(); ++w) {
      const int64_t from = w == 0 ? 0 : ends[w - 1], to = ends[w];
      double received = 0;
      for (int64_t t = from; t < to; ++t) {
        int64_t taken = 0;
        for (size_t i = 0; i < card.transfers.size(); ++i)
          if (card.transfers[i].start_ns <= t && t < ends[card.work_ns.size() + i]) taken += card.transfers[i].blocks;
        received += 1 - static_cast<double>(std::min(taken, card.multiprocessors - 1)) /
                            static_cast<double>(card.multiprocessors);
      }
      CHECK(std::abs(received - static_cast<double>(card.work_ns[w])) <= 0.51);
    }
    // More blocks never make the chain faster.
    int64_t last = 0;
    for (int times : {0, 1, 2, 4}) {
      SharedCard more = card;
      for (SharedCard::Transfer& transfer : more.transfers) transfer.blocks *= times;
      const int64_t end = more.ends()[card.work_ns.size() - 1];
      CHECK(end >= last);
      last = end;
    }
  }
}

namespace {
/// Ends of works of 1000 ns that begin together on one host, each wanting `share` units of its cores.
int64_t shared_end_ns(int64_t units, int works, int64_t share, int blocks = 0, int64_t transfer_ns = 0) {
  VirtualTime time({.multiprocessors = units});
  for (int i = 0; i < works; ++i) time.add_local(1000, 0, share);
  const uint32_t first = 0;
  if (blocks > 0) {
    const uint32_t rendezvous = time.add_rendezvous(1);
    time.join(rendezvous, {.wire_ns = transfer_ns, .card = 0, .blocks = blocks});
  }
  REQUIRE(time.solve());
  return time.end_ns(first);
}
}  // namespace

TEST_CASE("virtual time: works share the cores of a host", "[rehearse]") {
  // As many works as the cores hold run at full speed; more of them share the cores.
  CHECK(shared_end_ns(2000, 1, 1000) == 1000);
  CHECK(shared_end_ns(2000, 2, 1000) == 1000);
  CHECK(shared_end_ns(2000, 4, 1000) == 2000);
  CHECK(shared_end_ns(1000, 3, 1000) == 3000);
  CHECK(shared_end_ns(2000, 2, 2000) == 2000);  // two ranks of two threads
  // A transfer's thread takes half of the core that the work has.
  CHECK(shared_end_ns(1000, 1, 1000, 500, 600) == 1300);
  // An idle core takes the transfer.
  CHECK(shared_end_ns(2000, 1, 1000, 500, 600) == 1000);
}

TEST_CASE("virtual time: a work that ends leaves its cores to the others", "[rehearse]") {
  VirtualTime time({.multiprocessors = 1000});
  const uint32_t shorter = time.add_local(400, 0, 1000), longer = time.add_local(1000, 0, 1000);
  REQUIRE(time.solve());
  CHECK(time.end_ns(shorter) == 800);
  CHECK(time.end_ns(longer) == 1400);
}

TEST_CASE("virtual time: transfers that share a port take a core's time for their bytes once", "[rehearse]") {
  // The transfers need 500 and 300 ns of wire time on one port, which uses 400 units of the core: both run for the
  // first 600 ns, and the longer one for 200 more. The link always takes 400 of 1000 units, so a work of 1200 ns has
  // done 480 at 800.
  VirtualTime time({.multiprocessors = 1000});
  const uint32_t work = time.add_local(1200, 0, 1000);
  const auto transfer = [&](int64_t wire_ns) {
    return time.join(time.add_rendezvous(1), {.wire_ns = wire_ns, .card = 0, .blocks = 400, .blocks_per_byte = true});
  };
  const uint32_t longer = transfer(500), shorter = transfer(300);
  REQUIRE(time.solve());
  CHECK(time.end_ns(shorter) == 600);
  CHECK(time.end_ns(longer) == 800);
  CHECK(time.end_ns(work) == 800 + (1200 - 480));
}

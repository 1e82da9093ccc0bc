// SPDX-License-Identifier: Apache-2.0
// The emulated link: its bookkeeping against times by hand, and the communicator contract through it.

#include "comm/emulate/emulate.h"

#include "comm/thread/thread_world.h"
#include "engine/device/clock.h"
#include "tests/contract/routed_contract.h"
#include "tests/test.hpp"

using namespace slipstream;
using comm::PortSchedule;
using contract::RankTest;

namespace {

std::string joined(const std::vector<std::string>& failures) {
  std::string text;
  for (const std::string& failure : failures) text += failure + "\n";
  return text;
}

using Ports = std::vector<std::shared_ptr<comm::LinkPort>>;  // by rank

Ports make_ports(int ranks, const comm::Link& link) {
  Ports ports;
  for (int rank = 0; rank < ranks; ++rank) ports.push_back(std::make_shared<comm::LinkPort>(link));
  return ports;
}

std::vector<std::unique_ptr<comm::Communicator>> make_emulated_world(const Ports& ports) {
  auto world = comm::make_thread_world(static_cast<int>(ports.size()));
  for (size_t rank = 0; rank < world.size(); ++rank) world[rank] = comm::emulate(std::move(world[rank]), ports[rank]);
  return world;
}

std::vector<std::unique_ptr<comm::Communicator>> make_emulated_world(int ranks, const comm::Link& link) {
  return make_emulated_world(make_ports(ranks, link));
}

}  // namespace

TEST_CASE("two concurrent transfers on one port each take twice as long") {
  PortSchedule port(1e9);  // one byte per nanosecond
  const auto a = port.add(1000, 0, 5000);
  CHECK(port.predicted_end_ns(a) == 6000);
  const auto b = port.add(1000, 0, 5000);
  CHECK(port.predicted_end_ns(a) == 11000);
  CHECK(port.predicted_end_ns(b) == 11000);
  port.advance(10999);
  CHECK_FALSE(a->done);
  port.advance(20000);
  CHECK(a->done);
  CHECK(a->end_ns == 11000);
  CHECK(b->end_ns == 11000);
}

TEST_CASE("a transfer that joins later shares from then on") {
  PortSchedule port(1e9);
  const auto a = port.add(0, 0, 4000);
  port.advance(3000);
  const auto b = port.add(3000, 500, 2000);  // its latency takes no bandwidth
  // a is alone until 3500, when 500 bytes are left; its half of the rate takes 1000 ns more. b has 1500 bytes left at
  // 4500 and is alone again.
  CHECK(port.predicted_end_ns(a) == 4500);
  CHECK(port.predicted_end_ns(b) == 6000);
  port.advance(4500);
  CHECK(a->done);
  port.remove(a);
  CHECK(port.predicted_end_ns(b) == 6000);
}

TEST_CASE("a transfer reported late counts from its true begin") {
  PortSchedule port(1e9);
  const auto a = port.add(0, 0, 1000);
  port.advance(5000);
  CHECK(a->end_ns == 1000);
  port.remove(a);
  const auto b = port.add(2000, 100, 1000);  // the clock is at 5000, but the last member entered at 2000
  CHECK(port.predicted_end_ns(b) == 3100);
  port.advance(5001);
  CHECK(b->end_ns == 3100);
  port.remove(b);
  const auto c = port.add(3000, 0, 1000);  // the port belonged to b until 3100
  CHECK(port.predicted_end_ns(c) == 4100);
}

TEST_CASE("a port is full duplex: only a transfer in both directions shares it with transfers of either direction") {
  comm::PortSchedule port(1e9);
  const auto out = port.add(0, 0, 4000, true, false), in = port.add(0, 0, 4000, false, true);
  CHECK(port.predicted_end_ns(out) == 4000);
  CHECK(port.predicted_end_ns(in) == 4000);
  const auto second = port.add(0, 0, 4000, false, true);  // shares with `in` alone
  CHECK(port.predicted_end_ns(out) == 4000);
  CHECK(port.predicted_end_ns(in) == 8000);
  CHECK(port.predicted_end_ns(second) == 8000);
  comm::PortSchedule busy(1e9);
  const auto sent = busy.add(0, 0, 4000, true, false), received = busy.add(0, 0, 4000, false, true),
             both = busy.add(0, 0, 2000);
  CHECK(busy.predicted_end_ns(both) == 4000);
  CHECK(busy.predicted_end_ns(sent) == 6000);
  CHECK(busy.predicted_end_ns(received) == 6000);
}

TEST_CASE("no transfer exceeds the bandwidth, whichever others join and leave") {
  const uint64_t seed = 2024;
  const Philox random(seed, "port");
  INFO("seed " << seed);
  for (uint64_t round = 0; round < 50; ++round) {
    PortSchedule port(2e9);
    std::vector<PortSchedule::Ticket> tickets;
    int64_t now = 1000, total = 0, first = INT64_MAX, last = 0;
    const uint64_t count = 1 + random.below(round * 1000, 6);
    for (uint64_t i = 0; i < count; ++i) {
      now += static_cast<int64_t>(random.below(round * 1000 + 3 * i + 1, 3000));
      const int64_t bytes = static_cast<int64_t>(random.below(round * 1000 + 3 * i + 2, 20000));
      port.advance(now);
      tickets.push_back(port.add(now, 0, bytes));
      first = std::min(first, now);
      total += bytes;
      CHECK(port.predicted_end_ns(tickets.back()) >= now + bytes / 2);
    }
    port.advance(now + 1000000);
    for (const auto& ticket : tickets) {
      REQUIRE(ticket->done);
      last = std::max(last, ticket->end_ns);
    }
    CHECK(last - first >= total / 2 - 1);
    if (count == 1) CHECK(last - first <= total / 2 + 2);
  }
}

TEST_CASE("a link without a bandwidth has only its latency") {
  PortSchedule port(0);
  const auto a = port.add(100, 50, 1000000);
  CHECK(port.predicted_end_ns(a) == 150);
}

TEST_CASE("emulated communicators keep the contract") {
  for (int ranks : {1, 2, 3, 4}) {
    const Ports ports = make_ports(ranks, {.bytes_per_second = 50e9, .latency_ns = 100});
    auto world = make_emulated_world(ports), second = make_emulated_world(ports);
    CHECK(joined(contract::on_all_ranks(world, [&](RankTest& test) {
            contract::check_communicator(test, *second[static_cast<size_t>(test.comm.rank())]);
            contract::check_routed(test, 40, true);
            contract::check_bad_routes(test);
          })) == "");
    CHECK(joined(contract::on_all_ranks(world, [](RankTest& test) { contract::check_abort(test, true); })) == "");
  }
}

TEST_CASE("an emulated work ends no earlier than its wire time after the last entry") {
  const comm::Link link{.bytes_per_second = 1e9, .latency_ns = 1000000};
  auto world = make_emulated_world(2, link);
  const auto failures = contract::on_all_ranks(world, [&](RankTest& test) {
    constexpr int64_t kElems = 500000;
    std::vector<std::byte> bytes(kElems * 4);
    const Slice whole{RankTest::kFrom, 0, kElems * 4};
    const Work work = test.comm.all_reduce({.from = whole, .to = whole, .elems = kElems});
    const auto cost = comm::wire_cost(Op::all_reduce, Algorithm::direct, 2, kElems, DType::f32, link);
    test.expect(cost.latency_ns == 2000000 && cost.wire_ns == 2000000 && cost.bytes == 2000000, "the cost is wrong");
    for (int launch = 0; launch < 3; ++launch) {
      if (test.comm.rank() == launch % 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      test.run(work, bytes, bytes);
      std::vector<Span> spans;
      test.stream().drain(spans);
      const int64_t entered = comm::last_entry_ns(work);
      test.expect(spans.at(0).end_ns >= entered + cost.latency_ns + cost.wire_ns, "ended before the wire");
      test.expect(entered >= spans.at(0).begin_ns, "the last entry lies before the launch");
    }
  });
  CHECK(joined(failures) == "");
}

TEST_CASE("an emulated link takes the time of the counted bytes, separately in each direction") {
  // 2 GB/s: a row of 20 kB takes 10 us. The bound of 900 rows would take 9 ms.
  const comm::Link link{.bytes_per_second = 2e9, .latency_ns = 1000000};
  constexpr int kRanks = 3;
  constexpr int64_t kRowElems = 5000, kRowNs = 10000;
  auto world = make_emulated_world(kRanks, link);
  const auto failures = contract::on_all_ranks(world, [&](RankTest& test) {
    contract::RoutedLaws laws(test, 1, 300, 900, kRowElems, DType::f32, 12);
    // Rank 0 sends 250 rows to rank 1 and 10 to rank 2, and receives 20; rank 2 sends and receives little.
    const contract::RoutedCounts counts{"uneven", {40, 250, 10, 0, 100, 0, 20, 0, 280}};
    const int64_t rows[kRanks] = {260, 250, 20};
    laws.check(counts);
    std::vector<Span> spans;
    test.stream().drain(spans);
    test.expect(spans.size() == 2, "two works have two spans");
    for (const Span& span : spans) {
      const int64_t least_ns = link.latency_ns + rows[test.comm.rank()] * kRowNs;
      test.expect(span.link_ns >= least_ns && span.link_ns < least_ns + 3 * kRowNs,
                  fmt::format("the link took {} ns instead of {}", span.link_ns, least_ns));
    }
    laws.check({"nothing", std::vector<int32_t>(9, 0)});
    spans.clear();
    test.stream().drain(spans);
    for (const Span& span : spans) test.expect(span.link_ns < link.latency_ns, "no rows took the time of a message");
  });
  CHECK(joined(failures) == "");
}

TEST_CASE("two channels of one rank share its port") {
  const comm::Link link{.bytes_per_second = 1e9, .latency_ns = 0};
  const Ports ports = make_ports(2, link);
  auto world = make_emulated_world(ports), second_world = make_emulated_world(ports);
  const auto failures = contract::on_all_ranks(world, [&](RankTest& test) {
    constexpr int64_t kElems = 2500000;  // 10 MB: 10 ms alone, 20 ms for two at once
    comm::Communicator& second = *second_world[static_cast<size_t>(test.comm.rank())];
    RankTest other(second, "second");
    std::vector<std::byte> x(kElems * 4), y(kElems * 4);
    const Slice whole{RankTest::kFrom, 0, kElems * 4};
    const Work on_first = test.comm.all_reduce({.from = whole, .to = whole, .elems = kElems});
    const Work on_second = second.all_reduce({.from = whole, .to = whole, .elems = kElems});
    test.launch(on_first, x, x);
    other.launch(on_second, y, y);
    test.stream().synchronize();
    other.stream().synchronize();
    std::vector<Span> spans;
    test.stream().drain(spans);
    other.stream().drain(spans);
    const int64_t first = std::min(comm::last_entry_ns(on_first), comm::last_entry_ns(on_second));
    const int64_t last = std::max(spans.at(0).end_ns, spans.at(1).end_ns);
    test.expect(last - first >= 20000000, "two transfers of 10 ms ended within 20 ms of one port");
  });
  CHECK(joined(failures) == "");
}

TEST_CASE("abort wakes a transfer that sleeps on the link") {
  auto world = make_emulated_world(2, {.bytes_per_second = 1, .latency_ns = 0});  // 400 bytes would take 400 s
  const auto failures = contract::on_all_ranks(world, [&](RankTest& test) {
    std::vector<std::byte> bytes(400);
    const Slice whole{RankTest::kFrom, 0, 400};
    const Work work = test.comm.all_reduce({.from = whole, .to = whole, .elems = 100});
    test.launch(work, bytes, bytes);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    test.comm.abort();
    test.expect(contract::throws_comm_error([&] { test.stream().synchronize(); }), "abort did not wake the sleeper");
  });
  CHECK(joined(failures) == "");
}

// SPDX-License-Identifier: Apache-2.0
// The load of a busy emulated link, on the CPU with stand-ins for copies and blocks; and groups in which only one rank
// exists.

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "comm/emulate/emulate.h"
#include "comm/imitated_communicator.h"
#include "engine/device/clock.h"
#include "tests/contract/communicator_contract.h"
#include "tests/test.hpp"

using namespace slipstream;
using comm::LinkForm;
using comm::LinkPort;
using comm::LinkTraffic;
using contract::RankTest;

namespace {

constexpr int64_t kElems = 1 << 20;  // 4 MiB: several pieces

struct Seen {
  std::atomic<int64_t> copied_bytes{0}, copies{0}, holds{0};
  uint32_t flags[8] = {};
  size_t flags_taken = 0;
};

LinkTraffic traffic(LinkForm form, Seen& seen) {
  return {.form = form,
          .make_flag = [&] { return &seen.flags[seen.flags_taken++]; },
          .await =
              [&](LaunchContext&, const uint32_t* flag, uint32_t value) {
                while (std::atomic_ref(*const_cast<uint32_t*>(flag)).load() < value) std::this_thread::yield();
              },
          .copy = [&](LaunchContext&, const std::byte*,
                      int64_t size_bytes) { seen.copied_bytes += size_bytes, ++seen.copies; },
          .hold =
              [&](LaunchContext&, const std::byte*, int64_t, int64_t, const uint32_t* release) {
                while (std::atomic_ref(*const_cast<uint32_t*>(release)).load() == 0) std::this_thread::yield();
                ++seen.holds;
              }};
}

std::string lines(const std::vector<std::string>& failures) {
  std::string text;
  for (const std::string& failure : failures) text += failure + "\n";
  return text;
}

}  // namespace

TEST_CASE("every form takes at least the link's time and moves the same bytes") {
  const comm::Link link{1e9, 200'000};
  for (LinkForm form : {LinkForm::gate, LinkForm::copies, LinkForm::blocks}) {
    CAPTURE(static_cast<int>(form));
    Seen seen;
    const auto lone =
        comm::emulate(comm::make_imitated_communicator(1, 4), std::make_shared<LinkPort>(link), traffic(form, seen));
    RankTest test(*lone);
    std::vector<std::byte> from(4 * kElems, std::byte{1}), to(4 * kElems, std::byte{2});
    const Work work = lone->all_reduce({.from = {0, 0, 4 * kElems}, .to = {1, 0, 4 * kElems}, .elems = kElems});
    const comm::WireCost cost = comm::wire_cost(Op::all_reduce, Algorithm::direct, 4, kElems, DType::f32, link);
    for (int run = 0; run < 2; ++run) {
      const int64_t begin_ns = monotonic_ns();
      test.run(work, from, to);
      CHECK(monotonic_ns() - begin_ns >= cost.latency_ns + cost.wire_ns);
    }
    CHECK(from == to);
    CHECK(seen.holds == (form == LinkForm::blocks ? 2 : 0));
    // A form moves as much as the wire carries; what the buffer is too small for is not read twice.
    CHECK(seen.copies == (form == LinkForm::copies ? 2 * std::clamp<int64_t>(cost.bytes >> 20, 1, 16) : 0));
    CHECK((seen.copied_bytes > 0) == (form == LinkForm::copies));
    CHECK(seen.copied_bytes <= 2 * cost.bytes);
    CHECK(seen.copied_bytes >= (form == LinkForm::copies ? 2 * cost.bytes - 32 : 0));
  }
}

TEST_CASE("blocks of two channels are released in the order in which their bytes are sent") {
  Seen seen;
  const auto port = std::make_shared<LinkPort>(comm::Link{1e8, 0});
  const int64_t begin_ns = monotonic_ns();
  std::atomic<int64_t> ended_ns[2];
  const auto a = port->begin(begin_ns, 0, 1'000'000), b = port->begin(begin_ns, 0, 3'000'000);
  std::atomic<int> ended{0};
  int order[2] = {};
  port->when_done(b, [&] { ended_ns[1] = monotonic_ns(), order[1] = ++ended; });
  port->when_done(a, [&] { ended_ns[0] = monotonic_ns(), order[0] = ++ended; });
  while (ended < 2) std::this_thread::yield();
  CHECK((order[0] == 1 && order[1] == 2));
  CHECK(ended_ns[0] - begin_ns >= 20'000'000);  // each has half of the link: 1 MB at 50 MB/s
  CHECK(ended_ns[1] - begin_ns >= 40'000'000);
}

TEST_CASE("parts of a transfer are reported in order on a shared port, and none sleeps in the caller") {
  using namespace std::chrono_literals;
  const auto late = GENERATE(0ms, 60ms);  // how late the port's thread is, from 1 ms on
  const auto port = std::make_shared<LinkPort>(comm::Link{1e8, 0});
  const int64_t begin_ns = monotonic_ns() + 200'000'000;  // all are registered by then
  const auto a = port->begin(begin_ns, 0, 2'000'000), b = port->begin(begin_ns, 0, 500'000);
  std::mutex mutex;
  std::vector<std::pair<std::string, int64_t>> measured_ns;
  const auto tell = [&](const char* name) {
    return [&, name] {
      const std::lock_guard lock(mutex);
      measured_ns.emplace_back(name, monotonic_ns() - begin_ns);
    };
  };
  port->when_done(a, tell("half"), 1'000'000);
  port->when_done(a, tell("quarter"), 1'500'000);
  port->when_done(a, tell("all"));
  port->when_done(b, tell("other"));
  port->when_done(
      a, [&] { std::this_thread::sleep_for(late); }, 1'950'000);
  const auto count = [&] {
    const std::lock_guard lock(mutex);
    return measured_ns.size();
  };
  while (count() < 4) std::this_thread::yield();
  const std::map<std::string, int64_t> at(measured_ns.begin(), measured_ns.end());
  CHECK(at.at("quarter") >= 10'000'000);
  CHECK(at.at("half") >= 15'000'000);  // the other transfer has ended by then
  CHECK(at.at("all") >= 25'000'000);
  std::vector<std::string> parts;
  for (const auto& [name, ns] : measured_ns)
    if (name != "other") parts.push_back(name);
  CHECK(parts == std::vector<std::string>{"quarter", "half", "all"});
  CHECK(measured_ns.back().first == "all");
}

TEST_CASE("held blocks are released when the run is aborted") {
  Seen seen;
  const auto lone = comm::emulate(comm::make_imitated_communicator(0, 2), std::make_shared<LinkPort>(comm::Link{1, 0}),
                                  traffic(LinkForm::blocks, seen));
  RankTest test(*lone);
  std::vector<std::byte> bytes(400);
  const Work work = lone->all_reduce({.from = {0, 0, 400}, .to = {1, 0, 400}, .elems = 100});
  test.launch(work, bytes, bytes);
  lone->abort();
  test.stream().synchronize();
  CHECK(seen.holds == 1);
}

TEST_CASE("an imitated rank routes its own rows to its own experts, and the others have none") {
  for (int rank = 0; rank < 3; ++rank) {
    const auto lone = comm::make_imitated_communicator(rank, 3);
    RankTest test(*lone);
    const Route route{.experts = 2, .row_elems = 1, .source_rows = 6, .bound_rows = 3};
    // The rows of this rank are 0, 1, 2, ... in the order of its experts: one row for each of the six.
    std::vector<int32_t> from{0, 1, 2, 3, 4, 5}, to(3, -1), home(6, -1);
    for (int source = 0; source < 3; ++source)
      for (int expert = 0; expert < 6; ++expert) from.push_back(source == rank ? 1 : -7);
    const auto bytes_of = [](const std::vector<int32_t>& values) {
      std::vector<std::byte> bytes(values.size() * 4);
      std::memcpy(bytes.data(), values.data(), bytes.size());
      return bytes;
    };
    std::vector<std::byte> sent = bytes_of(from), there = bytes_of(to), back = bytes_of(home);
    test.run(lone->all_to_all_v({.from = {0, 0, 24}, .to = {1, 0, 12}, .counts = {0, 24, 72}, .route = route}), sent,
             there);
    to = {2 * rank, 2 * rank + 1, -1};
    CHECK(there == bytes_of(to));
    to.resize(3 + 18);
    std::copy(from.begin() + 6, from.end(), to.begin() + 3);
    there = bytes_of(to);
    Route reverse = route;
    reverse.reverse = true;
    test.run(lone->all_to_all_v({.from = {0, 0, 12}, .to = {1, 0, 24}, .counts = {0, 12, 72}, .route = reverse}), there,
             back);
    home[static_cast<size_t>(2 * rank)] = 2 * rank, home[static_cast<size_t>(2 * rank + 1)] = 2 * rank + 1;
    CHECK(back == bytes_of(home));
    CHECK(test.failures.empty());
  }
}

TEST_CASE("an imitated rank receives zeros from the other ranks") {
  for (int rank : {0, 1, 2}) {
    const auto lone = comm::make_imitated_communicator(rank, 3);
    CHECK((lone->rank() == rank && lone->size() == 3));
    RankTest test(*lone);
    const auto floats = [](std::initializer_list<float> values) {
      std::vector<std::byte> bytes(values.size() * 4);
      std::memcpy(bytes.data(), values.begin(), bytes.size());
      return bytes;
    };
    const auto r = static_cast<float>(rank);
    std::vector<std::byte> two = floats({1, 2}), six = floats({0, 1, 2, 3, 4, 5}), out2 = floats({9, 9}),
                           out6 = floats({9, 9, 9, 9, 9, 9});
    test.run(lone->all_reduce({.from = {0, 0, 8}, .to = {1, 0, 8}, .elems = 2}), two, out2);
    test.expect(out2 == two, "all_reduce");
    test.run(lone->reduce_scatter({.from = {0, 0, 24}, .to = {1, 0, 8}, .elems = 2}), six, out2);
    test.expect(out2 == floats({2 * r, 2 * r + 1}), "reduce_scatter");
    test.run(lone->all_gather({.from = {0, 0, 8}, .to = {1, 0, 24}, .elems = 2}), two, out6);
    std::vector<std::byte> gathered = floats({9, 9, 9, 9, 9, 9});
    std::memcpy(gathered.data() + 8 * rank, two.data(), 8);
    test.expect(out6 == gathered, "all_gather");
    out2 = floats({9, 9});
    test.run(lone->exchange({.from = {0, 0, 8}, .to = {1, 0, 8}, .elems = 2}, (rank + 1) % 3, (rank + 2) % 3), two,
             out2);
    test.expect(out2 == floats({9, 9}), "exchange");
    CHECK(lines(test.failures) == "");
  }
}

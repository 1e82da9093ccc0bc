// SPDX-License-Identifier: Apache-2.0
// all_to_all_v on ranks that are threads: the laws of its rows, refusals, and the memory that its launches allocate.

#include <cstdlib>
#include <new>
#include <numeric>

#include "comm/host/host_communicator.h"
#include "comm/host/shared_transport.h"
#include "comm/sim/sim_communicator.h"
#include "comm/thread/thread_world.h"
#include "tests/contract/routed_contract.h"
#include "tests/sample.h"
#include "tests/test.hpp"

using namespace slipstream;
using contract::RankTest;

namespace {

thread_local bool counts_allocations = false;
std::atomic<int64_t> allocations{0};

}  // namespace

[[gnu::noinline]] void* operator new(size_t size) {
  if (counts_allocations) ++allocations;
  void* memory = std::malloc(size > 0 ? size : 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

std::string joined(const std::vector<std::string>& failures) {
  std::string text;
  for (const std::string& failure : failures) text += failure + "\n";
  return text;
}

using World = std::vector<std::unique_ptr<comm::Communicator>>;

/// Ranks that are threads and send messages through rings in memory, as processes of one machine do.
World make_shared_world(int ranks) {
  const int64_t bytes = comm::shared_area_bytes(ranks);
  auto memory = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(ranks * bytes + 64));
  std::byte* first = memory->data() + (64 - reinterpret_cast<uintptr_t>(memory->data()) % 64) % 64;
  std::vector<std::byte*> areas;
  for (int rank = 0; rank < ranks; ++rank) {
    areas.push_back(first + rank * bytes);
    comm::prepare_shared_area(areas.back(), ranks);
  }
  std::vector<int> names(static_cast<size_t>(ranks));
  std::iota(names.begin(), names.end(), 0);
  World world;
  for (int rank = 0; rank < ranks; ++rank)
    world.push_back(std::make_unique<comm::HostCommunicator>(comm::make_shared_transport(areas, rank, names, memory),
                                                             comm::CommOptions{.timeout_seconds = 20}));
  return world;
}

World make_world(bool shares_memory, int ranks) {
  return shares_memory ? make_shared_world(ranks) : comm::make_thread_world(ranks);
}

}  // namespace

TEST_CASE("all_to_all_v moves every row to its expert and back, with exact bytes, on 1 to 4 ranks") {
  const bool shares_memory = GENERATE(false, true);
  for (int ranks = 1; ranks <= 4; ++ranks) {
#ifdef __SANITIZE_THREAD__
    if (ranks != 3 && !test_everything()) continue;
#endif
    World world = make_world(shares_memory, ranks);
    CHECK(joined(contract::on_all_ranks(world, [&](RankTest& test) {
            for (uint64_t seed = 1; seed <= 3; ++seed) contract::check_routed(test, 100 * seed);
            contract::check_bad_routes(test);
          })) == "");
  }
}

TEST_CASE("all_to_all_v refuses wrong counts with their numbers, on every rank") {
  const bool shares_memory = GENERATE(false, true);
  for (int ranks : {1, 3}) {
    const std::string last = fmt::format("rank {}", ranks - 1);
    World world = make_world(shares_memory, ranks);
    CHECK(joined(contract::on_all_ranks(world, [&](RankTest& test) {
            contract::check_bad_counts(test, -1,
                                       fmt::format("rows that {} sends to expert {} is -1", last, 2 * ranks - 1));
          })) == "");
    world = make_world(shares_memory, ranks);
    CHECK(joined(contract::on_all_ranks(world, [&](RankTest& test) {
            contract::check_bad_counts(test, INT32_MAX,
                                       fmt::format("the counts of {} add up to {} rows, but a source has 10", last,
                                                   int64_t{INT32_MAX} + 2 * ranks - 1));
          })) == "");
  }
}

TEST_CASE("all_to_all_v on threads names the ranks whose counts differ") {
  World world = comm::make_thread_world(2);
  const auto failures = contract::on_all_ranks(world, [](RankTest& test) {
    contract::RoutedLaws laws(test, 1, 10, 20, 4, DType::f32, 1);
    laws.check({"different", {1, 2, 3, test.comm.rank()}});
  });
  REQUIRE(failures.size() == 2);
  CHECK(joined(failures).find("count 3 is ") != std::string::npos);
}

TEST_CASE("all_to_all_v: 100 launches of one work with other counts allocate nothing") {
  // A third rank could send a message before its receive is posted, and the transport would keep it in new memory.
  const auto [shares_memory, ranks] = GENERATE(std::pair{false, 3}, std::pair{true, 1}, std::pair{true, 2});
  constexpr int kExperts = 4;
  constexpr int64_t kRows = 30, kRowElems = 64;
  World world = make_world(shares_memory, ranks);
  allocations = 0;
  const auto failures = contract::on_all_ranks(world, [&, ranks = ranks](RankTest& test) {
    contract::RoutedLaws laws(test, kExperts, kRows, ranks * kRows / 2, kRowElems, DType::f32, 5);
    Work counted = laws.dispatch();
    counted.fn = [fn = counted.fn](LaunchContext& context) {
      counts_allocations = true;
      fn(context);
      counts_allocations = false;
    };
    for (int launch = 0; launch < 100; ++launch) {
      const auto counts =
          contract::routed_counts(Philox(static_cast<uint64_t>(launch), "launches"), ranks, kExperts, kRows);
      laws.launch(counted, counts[static_cast<size_t>(launch) % counts.size()]);
    }
  });
  CHECK(joined(failures) == "");
  CHECK(allocations == 0);
}

TEST_CASE("all_to_all_v in virtual time costs the bytes of the balanced load") {
  const auto sim = comm::make_sim_communicator(1, 4);
  const Work work = sim->all_to_all_v({.from = {0, 0, 100 * 20},
                                       .to = {1, 0, 200 * 20},
                                       .counts = {2, 0, 4 * 4 * 4 * 3},
                                       .route = {.experts = 3, .row_elems = 5, .source_rows = 100, .bound_rows = 200}});
  CHECK(work.cost.bytes == 3 * 25 * 20);
  CHECK(work.reads == std::vector<Slice>{{0, 0, 100 * 20}, {2, 0, 4 * 4 * 4 * 3}});
  CHECK(work.writes == std::vector<Slice>{{1, 0, 200 * 20}});
}

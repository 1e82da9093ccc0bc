// SPDX-License-Identifier: Apache-2.0
// The communicator contract on ranks that are processes: through shared memory, sockets, and MPI alone. Every rank
// collects its failures; rank 0 prints all.

#include <cstdio>
#include <numeric>
#include <tuple>

#include "comm/emulate/emulate.h"
#include "comm/mpi/mpi_world.h"
#include "tests/contract/routed_contract.h"

using namespace slipstream;
using contract::RankTest;

namespace {

void check_control_plane(RankTest& test, comm::MpiWorld& world) {
  const auto text_of = [](int rank) {
    return std::string(static_cast<size_t>(rank * 3), static_cast<char>('a' + rank));
  };
  const auto all = world.all_gather(text_of(world.rank()));
  test.expect(static_cast<int>(all.size()) == world.size(), "all_gather of strings lost some");
  for (int r = 0; r < world.size(); ++r)
    test.expect(all[static_cast<size_t>(r)] == text_of(r), "all_gather mixed strings up");
  test.expect(world.broadcast(text_of(world.rank()), world.size() - 1) == text_of(world.size() - 1),
              "broadcast is wrong");
  const auto gathered = world.gather(text_of(world.rank()), world.size() - 1);
  test.expect(gathered.empty() == (world.rank() != world.size() - 1), "gather answered the wrong rank");
  test.expect(world.local_rank() >= 0 && world.local_rank() < world.local_size(), "the local rank is out of range");
  test.expect(world.clock_offset_ns() == 0, "one machine has two clocks");
  world.barrier();
}

/// A rank that waits for an absent peer gets an error after the timeout, with the op and the peer.
void check_timeout(RankTest& test, comm::MpiWorld& world, const std::vector<int>& ranks, comm::CommOptions options) {
  if (world.size() == 1) return;
  options.timeout_seconds = 0.05;
  const auto impatient = comm::make_mpi_communicator(world, ranks, 2, options);
  if (world.rank() != 0) return world.barrier();
  std::vector<std::byte> bytes(400);
  const Slice whole{RankTest::kFrom, 0, 400};
  RankTest inner(*impatient);
  std::string text;
  try {
    inner.run(impatient->recv({.to = whole, .elems = 100}, 1), bytes, bytes);
  } catch (const CommError& error) {
    text = error.what();
  }
  test.expect(text.find("recv of 100 float32") != std::string::npos && text.find("for rank 1") != std::string::npos,
              "error of the timeout: " + text);
  world.barrier();
}

/// The even and the odd ranks, each group in the opposite order of the world's.
void check_groups(RankTest& test, comm::MpiWorld& world, const comm::CommOptions& options) {
  std::vector<int> ranks;
  for (int r = world.size() - 1; r >= 0; --r)
    if (r % 2 == world.rank() % 2) ranks.push_back(r);
  const auto group = comm::make_mpi_communicator(world, ranks, 4, options);
  test.expect(group->size() == static_cast<int>(ranks.size()), "a group has the wrong size");
  test.expect(ranks.at(static_cast<size_t>(group->rank())) == world.rank(), "a group has another order of ranks");
  RankTest inner = test.of(*group);
  contract::VerbLaws<float>(inner, 1000, Algorithm::direct, 77).all();
  contract::VerbLaws<float>(inner, 1000, Algorithm::ring, 78).all_reduce(true);
  test.failures.insert(test.failures.end(), inner.failures.begin(), inner.failures.end());
}

/// Through an emulated link all ranks agree on the last entry, and none ends before the wire.
void check_emulated(RankTest& test, comm::MpiWorld& world, const std::vector<int>& ranks,
                    const comm::CommOptions& options) {
  const comm::Link link{.bytes_per_second = 1e9, .latency_ns = 200000};
  const auto group =
      comm::emulate(comm::make_mpi_communicator(world, ranks, 5, options), std::make_shared<comm::LinkPort>(link));
  RankTest inner(*group);
  contract::VerbLaws<float>(inner, 1000, Algorithm::direct, 9).all();
  contract::VerbLaws<bfloat16>(inner, 1000, Algorithm::ring, 10).all();
  contract::RoutedLaws routed(inner, 2, 20, 25, 8, DType::f32, 11);
  for (const auto& counts : contract::routed_counts(Philox(11, "emulated"), world.size(), 2, 20)) routed.check(counts);
  std::vector<std::byte> bytes(400000);
  const Slice whole{RankTest::kFrom, 0, 400000};
  const Work work = group->all_reduce({.from = whole, .to = whole, .elems = 100000});
  if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
  std::vector<Span> spans;
  inner.stream().drain(spans);
  spans.clear();
  inner.run(work, bytes, bytes);
  inner.stream().drain(spans);
  const int64_t entered = comm::last_entry_ns(work);
  const auto cost = comm::wire_cost(Op::all_reduce, Algorithm::direct, world.size(), 100000, DType::f32, link);
  test.expect(spans.at(0).end_ns >= entered + cost.latency_ns + cost.wire_ns, "ended before the emulated wire");
  for (const std::string& other : world.all_gather(std::to_string(entered)))
    test.expect(world.size() == 1 || other == std::to_string(entered), "ranks disagree on the last entry");
  test.failures.insert(test.failures.end(), inner.failures.begin(), inner.failures.end());
}

}  // namespace

int main() {
  comm::MpiWorld world;
  std::string report;
  try {
    std::vector<int> ranks(static_cast<size_t>(world.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    for (const auto& [share_memory, sockets, suffix] : {std::tuple{true, true, "\n"},
                                                        {false, true, " (through sockets)\n"},
                                                        {false, false, " (through MPI alone)\n"}}) {
      const comm::CommOptions options{.timeout_seconds = 20, .share_memory = share_memory, .sockets = sockets};
      const auto communicator = comm::make_mpi_communicator(world, ranks, 1, options);
      RankTest test(*communicator);
      check_control_plane(test, world);
      contract::check_communicator(test, *comm::make_mpi_communicator(world, ranks, 3, options));
      contract::check_routed(test, 38, !share_memory);
      contract::check_bad_routes(test);
      contract::check_bad_counts(test, -3, "is -3. Counts are at least 0");
      check_groups(test, world, options);
      check_emulated(test, world, ranks, options);
      contract::check_abort(test, false);
      check_timeout(test, world, ranks, options);
      for (const std::string& failure : test.failures) report += failure + suffix;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", world.rank(), error.what());
    world.abort(1);
  }
  std::string all;
  for (const std::string& text : world.all_gather(report)) all += text;
  if (world.rank() == 0) std::printf("%d ranks: %s", world.size(), all.empty() ? "all laws hold\n" : all.c_str());
  return all.empty() ? 0 : 1;
}

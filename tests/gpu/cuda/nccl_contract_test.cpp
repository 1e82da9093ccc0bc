// SPDX-License-Identifier: Apache-2.0
// The communicator contract through NCCL between processes that share a GPU or have one each. NCCL adds in its own
// order, so sums are of small whole numbers; for arbitrary numbers the test requires the same bits on every rank, and
// in a repetition.

#include <chrono>
#include <thread>

#include "engine/base/hash.h"
#include "tests/contract/communicator_contract.h"
#include "tests/gpu/cuda/nccl_ranks.h"

using namespace slipstream;
using contract::RankTest;
using contract::Values;
using contract::VerbLaws;

namespace {

void check_exact_verbs(RankTest& test) {
  uint64_t seed = 1;
  for (int64_t elems : {0, 1, 7, 1025}) {
    VerbLaws<float>(test, elems, Algorithm::direct, seed++, Values::exact).all();
    VerbLaws<bfloat16>(test, elems, Algorithm::direct, seed++, Values::exact).all();
    VerbLaws<double>(test, elems, Algorithm::direct, seed++, Values::exact).all();
    VerbLaws<int32_t>(test, elems, Algorithm::direct, seed++).moves();
  }
  VerbLaws<float>(test, 300007, Algorithm::direct, seed++, Values::exact).all_reduce(true);
  VerbLaws<bfloat16>(test, 300007, Algorithm::direct, seed++, Values::exact).reduce_scatter(false);
  VerbLaws<float>(test, 200003, Algorithm::direct, seed++, Values::exact).moves();
}

/// Arbitrary numbers: the same bits on all ranks, and in a second sum.
void check_same_bits(RankTest& test, runtime::World& world) {
  constexpr int64_t kElems = 70001;
  const Philox random(5, "values");
  const Slice whole{RankTest::kFrom, 0, kElems * 4};
  const Work work = test.comm.all_reduce({.from = whole, .to = whole, .elems = kElems});
  std::string first;
  for (int turn = 0; turn < 2; ++turn) {
    std::vector<std::byte> bytes(kElems * 4);
    for (int64_t i = 0; i < kElems; ++i) {
      const auto value = contract::make<float>(random, test.comm.rank(), i);
      std::memcpy(bytes.data() + 4 * i, &value, 4);
    }
    test.run(work, bytes, bytes);
    data::Xxh3 hash;
    hash.update(bytes.data(), static_cast<int64_t>(bytes.size()));
    const std::vector<std::string> hashes = world.all_gather(hash.hex());
    for (const std::string& other : hashes) test.expect(other == hashes[0], "ranks got different bits from one sum");
    if (turn == 0) first = hashes[0];
    test.expect(hashes[0] == first, "the same sum gave other bits again");
  }
}

/// The last rank stays away; the others are inside a transfer, and must return when they abort. Ends the communicator.
void check_abort_in_flight(RankTest& test) {
  std::vector<std::byte> bytes(400);
  const Slice whole{RankTest::kFrom, 0, 400};
  const Work work = test.comm.all_reduce({.from = whole, .to = whole, .elems = 100});
  test.run(work, bytes, bytes);  // connects
  if (test.comm.rank() != test.comm.size() - 1) {
    test.launch(work, bytes, bytes);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  test.comm.abort();
  test.stream().synchronize();
  RankTest later = test.of(test.comm);
  test.expect(contract::throws_comm_error([&] { later.run(work, bytes, bytes); }), "a work after abort ran");
}

}  // namespace

int main(int argc, char** argv) {
  if (test::lists(argc, argv, {"laws"})) return 0;
  test::require_card();
  runtime::World world;
  std::string failures;
  try {
    const contract::MakeDevice on_card = [card = test::card_of(world)] { return make_cuda_device(card); };
    const auto connected = on_card();  // NCCL uses the current device
    const auto connect = [&](const char* name) {
      return comm::make_nccl_communicator(world.rank(), world.size(),
                                          [&](const std::string& bytes) { return world.all_gather(bytes)[0]; },
                                          {.name = name, .timeout_seconds = 60});
    };
    const auto communicator = connect("contract");
    RankTest test(*communicator, "contract", on_card);
    check_exact_verbs(test);
    contract::check_concurrent_channels(test, *connect("second"), false);
    contract::check_bad_input(test);
    check_same_bits(test, world);
    if (world.size() > 1) check_abort_in_flight(test);
    for (const std::string& failure : test.failures) failures += failure + "\n";
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", world.rank(), error.what());
    world.abort(ExitCode::communication);
  }
  return test::report(world, failures, "all laws hold");
}

// SPDX-License-Identifier: Apache-2.0
// The communicator contract on ranks that are threads.

#include "comm/thread/thread_world.h"
#include "tests/contract/communicator_contract.h"
#include "tests/sample.h"
#include "tests/test.hpp"

using namespace slipstream;
using contract::RankTest;

namespace {

std::string joined(const std::vector<std::string>& failures) {
  std::string text;
  for (const std::string& failure : failures) text += failure + "\n";
  return text;
}

/// A communicator that adds in the reverse order of ranks, through a member of another world that counts its ranks from
/// the other end: the oracle must detect this.
class Reversed final : public comm::Communicator {
 public:
  Reversed(int rank, comm::Communicator& inner) : rank_(rank), inner_(inner) {}
  int rank() const override { return rank_; }
  int size() const override { return inner_.size(); }
  Work all_reduce(const comm::Transfer& transfer) override { return inner_.all_reduce(transfer); }
  Work reduce_scatter(const comm::Transfer&) override { return {}; }
  Work all_gather(const comm::Transfer&) override { return {}; }
  Work all_to_all(const comm::Transfer&) override { return {}; }
  Work all_to_all_v(const comm::RoutedTransfer&) override { return {}; }
  Work send(const comm::Transfer&, int) override { return {}; }
  Work recv(const comm::Transfer&, int) override { return {}; }
  Work exchange(const comm::Transfer&, int, int) override { return {}; }
  void abort() override { inner_.abort(); }

 private:
  int rank_;
  comm::Communicator& inner_;
};

}  // namespace

TEST_CASE("the oracle notices additions in the reverse order, on more than two ranks") {
  for (int ranks : {2, 3, 4}) {
    auto world = comm::make_thread_world(ranks), from_the_end = comm::make_thread_world(ranks);
    std::atomic<int> noticed{0};
    const auto failures = contract::on_all_ranks(world, [&](RankTest& test) {
      const int rank = test.comm.rank();
      Reversed reversed(rank, *from_the_end[static_cast<size_t>(ranks - 1 - rank)]);
      RankTest inner(reversed);
      contract::VerbLaws<float>(inner, 1000, Algorithm::direct, 5).all_reduce(false);
      contract::VerbLaws<double>(inner, 1000, Algorithm::direct, 6).all_reduce(false);
      noticed += static_cast<int>(inner.failures.size());
    });
    CHECK(joined(failures) == "");
    CHECK(noticed == (ranks == 2 ? 0 : 2 * ranks));
  }
}

TEST_CASE("thread communicators keep the contract") {
  for (int ranks = 1; ranks <= 4; ++ranks) {
#ifdef __SANITIZE_THREAD__
    if (ranks != 3 && !test_everything()) continue;  // all of them take a minute
#endif
    auto world = comm::make_thread_world(ranks), second = comm::make_thread_world(ranks);
    CHECK(joined(contract::on_all_ranks(world, [&](RankTest& test) {
            contract::check_communicator(test, *second[static_cast<size_t>(test.comm.rank())]);
          })) == "");
    CHECK(joined(contract::on_all_ranks(world, [](RankTest& test) { contract::check_abort(test, true); })) == "");
  }
}

TEST_CASE("the last entry is known after a collective, and lies between the ranks' launches and its end") {
  auto world = comm::make_thread_world(3);
  const auto failures = contract::on_all_ranks(world, [](RankTest& test) {
    std::vector<std::byte> bytes(400);
    const Slice whole{RankTest::kFrom, 0, 400};
    const Work work = test.comm.all_reduce({.from = whole, .to = whole, .elems = 100});
    if (test.comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    test.run(work, bytes, bytes);
    std::vector<Span> spans;
    test.stream().drain(spans);
    const int64_t entered = comm::last_entry_ns(work);
    test.expect(entered <= spans.at(0).end_ns, "the last entry lies after the end");
    if (test.comm.rank() == 1) test.expect(entered >= spans.at(0).begin_ns, "the late rank was not the last");
    if (test.comm.rank() == 0)
      test.expect(entered - spans.at(0).begin_ns >= 1000000, "the wait for the late rank is not seen");
  });
  CHECK(joined(failures) == "");
}

TEST_CASE("ranks whose calls disagree get an error, and no rank hangs") {
  auto world = comm::make_thread_world(2);
  const auto failures = contract::on_all_ranks(world, [](RankTest& test) {
    std::vector<std::byte> bytes(400);
    const Slice whole{RankTest::kFrom, 0, 400};
    const Work work = test.comm.all_reduce({.from = whole, .to = whole, .elems = 100 - test.comm.rank()});
    test.run(work, bytes, bytes);
  });
  REQUIRE(failures.size() == 2);
  CHECK(joined(failures).find("same verbs in the same order") != std::string::npos);
}

TEST_CASE("the timeout names a peer that never arrives") {
  auto world = comm::make_thread_world(2, {.timeout_seconds = 0.05});
  const auto failures = contract::on_all_ranks(world, [](RankTest& test) {
    if (test.comm.rank() == 1) return;
    std::vector<std::byte> bytes(400);
    const Slice whole{RankTest::kFrom, 0, 400};
    test.run(test.comm.all_reduce({.from = whole, .to = whole, .elems = 100}), bytes, bytes);
  });
  REQUIRE(failures.size() == 1);
  CHECK(failures[0].find("all_reduce of 100 float32") != std::string::npos);
  CHECK(failures[0].find("for rank 1") != std::string::npos);
}

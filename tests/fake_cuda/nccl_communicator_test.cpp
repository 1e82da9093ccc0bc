// SPDX-License-Identifier: Apache-2.0
// The verbs' laws on NCCL communicators over the fakes of NCCL and of CUDA, and the errors made from NCCL's.

#include <condition_variable>
#include <cstdlib>

#include "comm/nccl/nccl.h"
#include "tests/contract/communicator_contract.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/fake_nccl.h"
#include "tests/fake_cuda/fake_nccl_tuner.h"
#include "tests/test.hpp"

using namespace slipstream;
using contract::RankTest;
using contract::VerbLaws;

namespace {

/// Rank 0's bytes for all threads of a group.
class Board {
 public:
  comm::ShareBytes of(int rank) {
    return [this, rank](const std::string& bytes) {
      std::unique_lock lock(mutex_);
      if (rank == 0) {
        bytes_ = bytes;
        written_ = true;
        changed_.notify_all();
      }
      changed_.wait(lock, [this] { return written_; });
      return bytes_;
    };
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool written_ = false;
  std::string bytes_;
};

/// Runs body(test) for each of `ranks` threads; the failures of all.
template <typename Body>
std::string on_ranks(int ranks, Body body) {
  fake_cuda::reset();
  fake_nccl::reset();
  Board board;
  std::vector<std::string> failures(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      std::string& mine = failures[static_cast<size_t>(rank)];
      try {
        const auto communicator = comm::make_nccl_communicator(rank, ranks, board.of(rank), {.name = "gradients"});
        RankTest test(*communicator, "gradients", [] { return make_cuda_device(0); });
        body(test);
        for (const std::string& failure : test.failures) mine += failure + "\n";
      } catch (const std::exception& error) {
        mine += error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  std::string all;
  for (const std::string& some : failures) all += some;
  return all;
}

}  // namespace

TEST_CASE("verbs move and sum the right bytes") {
  for (int ranks = 1; ranks <= 4; ++ranks)
    CHECK(on_ranks(ranks, [](RankTest& test) {
            uint64_t seed = 1;
            for (int64_t elems : {0, 1, 7, 1025}) {
              VerbLaws<float>(test, elems, Algorithm::direct, seed++).all();
              VerbLaws<bfloat16>(test, elems, Algorithm::direct, seed++).all();
              VerbLaws<double>(test, elems, Algorithm::direct, seed++).all();
              VerbLaws<int32_t>(test, elems, Algorithm::direct, seed++).moves();
            }
            contract::check_bad_input(test);
          }) == "");
}

TEST_CASE("each verb is the NCCL call of its name, on elements") {
  CHECK(on_ranks(2, [](RankTest& test) {
          std::vector<std::byte> from(800), to(800);
          const comm::Transfer transfer{.from = {0, 0, 800}, .to = {1, 0, 800}, .elems = 100, .dtype = DType::bf16};
          test.run(test.comm.all_reduce(transfer), from, to);
          test.run(test.comm.exchange(transfer, 1 - test.comm.rank(), 1 - test.comm.rank()), from, to);
          const std::vector<std::string> calls = fake_nccl::calls_of(test.comm.rank());
          const std::string peer = std::to_string(1 - test.comm.rank());
          test.expect(
              calls == std::vector<std::string>{"all_reduce 100 bf16", "send 100 to " + peer, "recv 100 from " + peer},
              "other calls were made");
        }) == "");
}

TEST_CASE("rows by counts are refused before a work exists, because the counts are in device memory") {
  CHECK(on_ranks(2, [](RankTest& test) {
          std::string sentence;
          try {
            test.comm.all_to_all_v({.from = {0, 0, 40},
                                    .to = {1, 0, 80},
                                    .counts = {2, 0, 16},
                                    .route = {.experts = 1, .row_elems = 1, .source_rows = 10, .bound_rows = 20}});
          } catch (const CommError& error) {
            sentence = error.what();
          }
          test.expect(
              sentence.find("all_to_all_v of 10 rows of 1 float32, bound 20 is not available") != std::string::npos,
              "another sentence: " + sentence);
        }) == "");
}

TEST_CASE("an asynchronous error is reported with NCCL's message") {
  const std::string failures = on_ranks(2, [](RankTest& test) {
    test.comm.check_for_errors();
    if (test.comm.rank() == 1) return;
    fake_nccl::break_rank(0, ncclRemoteError);
    try {
      test.comm.check_for_errors();
      test.expect(false, "no error was seen");
    } catch (const CommError& error) {
      const std::string text = error.what();
      test.expect(text.find("[nccl] gradients: ") == 0 && text.find("remote process exited") != std::string::npos &&
                      text.find("socket closed") != std::string::npos,
                  text);
    }
    test.comm.abort();
  });
  CHECK(failures == "");
}

TEST_CASE("works after an abort throw in their stream") {
  CHECK(on_ranks(2, [](RankTest& test) {
          test.comm.abort();
          test.comm.abort();
          std::vector<std::byte> bytes(400);
          const comm::Transfer transfer{.from = {0, 0, 400}, .to = {1, 0, 400}, .elems = 100};
          test.expect(contract::throws_comm_error([&] { test.run(test.comm.all_reduce(transfer), bytes, bytes); }),
                      "a work after abort ran");
          test.expect(contract::throws_comm_error([&] { test.comm.check_for_errors(); }), "the check passed");
        }) == "");
}

TEST_CASE("an abort lasts until graphs are destroyed; works and checks report the lost connection meanwhile") {
  CHECK(on_ranks(1, [](RankTest& test) {
          const auto device = make_cuda_device(0);
          const auto stream = device->make_stream({.name = "reduce"});
          std::vector<std::byte> bytes(400);
          const Memory memory({{bytes.data(), 0, Instances::one}});
          const Frame frame{.memory = &memory};
          const Work work = test.comm.all_reduce({.from = {0, 0, 400}, .to = {0, 0, 400}, .elems = 100});
          auto graph = device->capture(
              *stream, [&] { stream->launch(work, frame); }, GraphSpans::of_works);
          std::atomic<bool> ended{false};
          std::thread aborting([&] {
            test.comm.abort();
            ended = true;
          });
          const auto is_gone = [&] { return contract::throws_comm_error([&] { test.comm.check_for_errors(); }); };
          while (!is_gone()) std::this_thread::yield();
          test.comm.abort();  // a second one has nothing to do
          test.expect(!ended, "the abort did not wait for the graph");
          graph.reset();
          aborting.join();
        }) == "");
}

TEST_CASE("a communicator's name outlives the options that it was made with") {
  fake_cuda::reset();
  fake_nccl::reset();
  Board board;
  comm::NcclOptions options{.name = "a name that is too long to be kept inside of a string"};
  const auto communicator = comm::make_nccl_communicator(0, 1, board.of(0), options);
  const std::string name = options.name;
  std::fill(options.name.begin(), options.name.end(), '?');
  CHECK(fake_nccl::name_of_latest(0) == name);
}

TEST_CASE("the timeout names a peer that never arrives") {
  fake_nccl::reset();
  fake_nccl::never_connect(true);
  Board board;
  CHECK_THROWS_WITH(comm::make_nccl_communicator(0, 2, board.of(0), {.name = "gradients", .timeout_seconds = 0.05}),
                    Catch::Contains("connecting rank 0 of 2 took more than 0.05 s"));
}

TEST_CASE("another version of NCCL is refused before anything connects") {
  fake_nccl::reset();
  Board board;
  const std::string shared = board.of(0)("   21803" + std::string(sizeof(ncclUniqueId), 'x'));
  CHECK_THROWS_WITH(comm::make_nccl_communicator(1, 2, board.of(1)), Catch::Contains("rank 0 of its group has 21803"));
}

TEST_CASE("the environment is set where the user has not set it") {
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1);
  setenv("NCCL_PROTO", "LL", 1);
  comm::prepare_nccl_environment({.world_rank = 3, .shares_gpu = true});
  CHECK(std::string(std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT")) == "0");
  CHECK(std::string(std::getenv("NCCL_PROTO")) == "LL");
  CHECK(std::string(std::getenv("NCCL_HOSTID")) == "slipstream-rank-3");
  CHECK(std::string(std::getenv("NCCL_SOCKET_IFNAME")) == "lo");
  unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  comm::prepare_nccl_environment({.world_rank = 3});
  CHECK(std::string(std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT")) == "1");
}

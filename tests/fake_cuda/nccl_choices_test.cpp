// SPDX-License-Identifier: Apache-2.0
// The settings of NCCL for each channel, the answers and records of its tuner, its memory, and its registrations.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <thread>

#include "comm/nccl/nccl.h"
#include "comm/nccl/tuner.h"
#include "engine/base/check.h"
#include "engine/base/units.h"
#include "tests/contract/communicator_contract.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/fake_nccl.h"
#include "tests/fake_cuda/fake_nccl_tuner.h"
#include "tests/test.hpp"

using namespace slipstream;
using comm::NcclTable;
using contract::RankTest;

namespace {

const char* const kTable = R"({"channels": {
  "*": {"max_ctas": 8},
  "reduce": {"min_ctas": 2, "max_ctas": 4, "cluster_size": 0, "traffic_class": 3,
             "choices": [{"verb": "all_reduce", "up_to": "64KiB", "algorithm": "tree", "protocol": "simple"},
                         {"verb": "all_reduce", "up_to": "4KiB", "algorithm": "ring", "protocol": "ll"},
                         {"verb": "all_gather", "algorithm": "nvls", "protocol": "simple"}]}}})";

/// A communicator of one rank, and its device.
struct Alone {
  explicit Alone(const std::string& channel, const NcclTable& table = NcclTable::parse(kTable, "table"))
      : comm(comm::make_nccl_communicator(0, 1, [](const std::string& bytes) { return bytes; },
                                          {.name = channel, .channel = table.of(channel)})),
        test(*comm, channel, [] { return make_cuda_device(0); }) {}
  void all_reduce(int64_t elems) {
    std::vector<std::byte> bytes(static_cast<size_t>(4 * elems));
    const Slice slice{0, 0, 4 * elems};
    test.run(comm->all_reduce({.from = slice, .to = slice, .elems = elems}), bytes, bytes);
  }
  std::unique_ptr<comm::Communicator> comm;
  RankTest test;
};

void start() {
  fake_cuda::reset();
  fake_nccl::reset();
  fake_nccl::reset_tuner();
  comm::forget_nccl_uses();
  unsetenv("NCCL_ALGO");
  unsetenv("NCCL_PROTO");
  unsetenv("NCCL_TUNER_PLUGIN");
  comm::prepare_nccl_environment({});
}

std::string text_of(const comm::NcclUse& use) {
  return fmt::format("{} {} {} {}/{}{}", use.channel, name_of(use.op), use.up_to_bytes, comm::name_of(use.algorithm),
                     comm::name_of(use.protocol), use.from_table ? " of the table" : "");
}
std::vector<std::string> uses() {
  std::vector<std::string> all;
  for (const comm::NcclUse& use : comm::nccl_uses()) all.push_back(text_of(use));
  return all;
}

}  // namespace

TEST_CASE("a channel asks for the blocks, clusters and traffic class that the table gives it") {
  start();
  { const Alone reduce("reduce"), gather("gather"); }
  { const Alone plain("reduce", {}); }
  CHECK(fake_nccl::configs_of(0) == std::vector<std::string>{"reduce: ctas 2 to 4, cluster 0, class 3",
                                                             "gather: ctas - to 8, cluster -, class -",
                                                             "reduce: ctas - to -, cluster -, class -"});
}

TEST_CASE("a policy of the table reaches NCCL, and one without blocks makes windows of registered memory") {
  start();
  const NcclTable table =
      NcclTable::parse(R"({"channels": {"gather": {"policy": "zero"}, "reduce": {"policy": "efficiency"}, )"
                       R"("norm": {"policy": "default"}}})",
                       "table");
  const auto device = make_cuda_device(0, comm::nccl_device_memory());
  const auto arena = device->allocate(1 << 20, "parameters");
  {
    const Alone gather("gather", table), reduce("reduce", table), norm("norm", table);
    CHECK(fake_nccl::configs_of(0) == std::vector<std::string>{"gather: ctas - to -, cluster -, class -, policy 2",
                                                               "reduce: ctas - to -, cluster -, class -, policy 1",
                                                               "norm: ctas - to -, cluster -, class -, policy 0"});
    for (const Alone* alone : {&gather, &reduce, &norm})
      CHECK(alone->comm->register_memory(arena->data(), arena->size_bytes()) == "");
    CHECK((fake_nccl::registered().now == 3 && fake_nccl::registered().windows == 1));
    gather.comm->forget_memory();
    CHECK((fake_nccl::registered().now == 2 && fake_nccl::registered().windows == 0));
    CHECK(gather.comm->register_memory(arena->data(), arena->size_bytes()) == "");
  }
  CHECK((fake_nccl::registered().now == 0 && fake_nccl::registered().windows == 0));
  CHECK(fake_nccl::registered().ended_with_registered == 0);
  // Where links have no windows, the memory is registered as on other channels.
  fake_nccl::set_registration(ncclSuccess, false);
  const Alone other("gather", table);
  CHECK_THAT(other.comm->register_memory(arena->data(), arena->size_bytes()), Catch::Contains("does not use"));
}

TEST_CASE("an NCCL before 2.28 gets no policy and no window") {
  start();
  fake_nccl::set_version(22703);
  const auto device = make_cuda_device(0, comm::nccl_device_memory());
  const auto arena = device->allocate(1 << 20, "parameters");
  {
    const Alone gather("gather", NcclTable::parse(R"({"channels": {"*": {"policy": "zero"}}})", "table"));
    CHECK(fake_nccl::configs_of(0) == std::vector<std::string>{"gather: ctas - to -, cluster -, class -"});
    CHECK(gather.comm->register_memory(arena->data(), arena->size_bytes()) == "");
    CHECK((fake_nccl::registered().now == 1 && fake_nccl::registered().windows == 0));
  }
  fake_nccl::set_version(NCCL_VERSION_CODE);
}

TEST_CASE("the tuner takes the table's choice where the links allow it, and records every size class") {
  start();
  Alone reduce("reduce"), other("other");
  for (int64_t elems : {1024, 1000, 5000, 30000}) reduce.all_reduce(elems);
  other.all_reduce(1000);
  other.all_reduce(30000);
  // The (fake) links exclude the table's tree with Simple: NCCL's own choice stands.
  CHECK(uses() == std::vector<std::string>{"other all_reduce 4096 tree/ll", "other all_reduce 131072 ring/simple",
                                           "reduce all_reduce 4096 ring/ll of the table",
                                           "reduce all_reduce 32768 tree/ll", "reduce all_reduce 131072 ring/simple"});
}

TEST_CASE("one algorithm and protocol for all sizes are recorded as NCCL's, and a user's own tuner stays") {
  start();
  comm::prepare_nccl_environment({.deterministic = true});
  {
    Alone plain("plain", {});
    plain.all_reduce(10);
    plain.all_reduce(100000);
  }
  CHECK(uses() == std::vector<std::string>{"plain all_reduce 64 ring/simple", "plain all_reduce 524288 ring/simple"});
  start();
  setenv("NCCL_TUNER_PLUGIN", "libmine.so", 1);
  comm::prepare_nccl_environment({});
  CHECK(std::string(std::getenv("NCCL_TUNER_PLUGIN")) == "libmine.so");
  Alone reduce("reduce");
  reduce.all_reduce(10);
  CHECK(uses().empty());
  unsetenv("NCCL_TUNER_PLUGIN");
}

TEST_CASE("registered memory is deregistered before the communicator ends and before it is freed") {
  start();
  const auto device = make_cuda_device(0, comm::nccl_device_memory());
  auto arena = device->allocate(1 << 20, "gradients");
  {
    const Alone reduce("reduce"), gather("gather");
    CHECK(reduce.comm->register_memory(arena->data(), arena->size_bytes()) == "");
    CHECK(gather.comm->register_memory(arena->data(), arena->size_bytes()) == "");
    CHECK(fake_nccl::registered().now == 2);
    gather.comm->forget_memory();
    CHECK(fake_nccl::registered().now == 1);
  }
  arena.reset();
  const fake_nccl::Registered end = fake_nccl::registered();
  CHECK((end.now == 0 && end.ever == 2));
  CHECK((end.ended_with_registered == 0 && end.freed_while_registered == 0));
}

TEST_CASE("the fake reports memory that is freed while registered") {
  start();
  const auto device = make_cuda_device(0, comm::nccl_device_memory());
  auto arena = device->allocate(1 << 20, "gradients");
  const Alone reduce("reduce");
  CHECK(reduce.comm->register_memory(arena->data(), arena->size_bytes()) == "");
  arena.reset();
  CHECK(fake_nccl::registered().freed_while_registered == 1);
}

TEST_CASE("memory of NCCL is zeroed, has whole pages, is read in place, and returns to NCCL") {
  start();
  const fake_cuda::Counts before = fake_cuda::counts();
  {
    const auto device = make_cuda_device(0, comm::nccl_device_memory()), plain = make_cuda_device(0);
    const auto arena = device->allocate(5000, "gradients"), other = plain->allocate(5000, "gradients");
    CHECK(reinterpret_cast<uintptr_t>(arena->data()) % 4096 == 0);
    std::vector<std::byte> held(5000, std::byte{1});
    device->copy_to_host(held.data(), arena->data(), 5000);
    CHECK(held == std::vector<std::byte>(5000));
    CHECK(device->allocation_count() == 1);
    const Alone reduce("reduce");
    CHECK(reduce.comm->register_memory(arena->data(), arena->size_bytes()) == "");
    CHECK(reduce.comm->register_memory(other->data(), other->size_bytes()) != "");
    // Neither call frees the other's memory.
    void *of_runtime = nullptr, *of_nccl = nullptr;
    REQUIRE(cudaMalloc(&of_runtime, 1) == cudaSuccess);
    REQUIRE(ncclMemAlloc(&of_nccl, 1) == ncclSuccess);
    CHECK(cudaFree(of_nccl) != cudaSuccess);
    CHECK(ncclMemFree(of_runtime) != ncclSuccess);
    CHECK(cudaFree(of_runtime) == cudaSuccess);
    CHECK(ncclMemFree(of_nccl) == ncclSuccess);
  }
  CHECK(fake_cuda::counts().blocks == before.blocks);
}

TEST_CASE("memory of NCCL is freed when the device has ended its users") {
  start();
  const auto device = make_cuda_device(0, comm::nccl_device_memory());
  const auto stream = device->make_stream({.name = "compute"});
  auto arena = device->allocate(1000, "activations");
  std::atomic<bool> ended{false};
  const Work work{"late", {}, {}, {}, [&](LaunchContext& c) {
                    fake_cuda::enqueue(static_cast<cudaStream_t>(c.native_stream), [&] {
                      std::this_thread::sleep_for(std::chrono::milliseconds(50));
                      ended = true;
                    });
                  }};
  stream->launch(work, {});
  arena.reset();
  CHECK(ended);
  CHECK_NOTHROW(stream->synchronize());
}

TEST_CASE("an allocation that NCCL refuses gives the device's error with the free bytes") {
  start();
  const auto device = make_cuda_device(0, comm::nccl_device_memory());
  const auto refused = [&](int64_t bytes) -> std::string {
    try {
      device->allocate(bytes, "activations");
    } catch (const ResourceError& error) {
      return error.what();
    }
    return "no error";
  };
  fake_cuda::settings().memory_bytes = 5 * kMiB;
  const auto held = device->allocate(kMiB, "gradients");
  CHECK(
      refused(2 * kMiB) ==
      "[memory] activations needs 4.0 MiB on GPU 0, but 3.0 MiB of 5.0 MiB are free. Use a smaller model, micro-batch "
      "or sequence, or more ranks.");
  CHECK(refused(kMiB) == "no error");
  fake_nccl::memory_says(ncclUnhandledCudaError);
  CHECK_THAT(refused(kMiB), Catch::Contains("needs 2.0 MiB on GPU 0, 3.0 MiB of 5.0 MiB are free, but NCCL "
                                            "cannot allocate it: an error of the fake") &&
                                Catch::Contains("NCCL_CUMEM_ENABLE=0"));
  CHECK(cudaGetLastError() == cudaSuccess);
  // A lost GPU gives the usual error.
  fake_cuda::fail_next("cudaMemGetInfo", cudaErrorDevicesUnavailable);
  CHECK_THAT(refused(kMiB), Catch::Contains("[cuda] ") && !Catch::Contains("NCCL"));
}

TEST_CASE("memory that NCCL does not register gives a reason and no error") {
  start();
  const auto device = make_cuda_device(0, comm::nccl_device_memory());
  const auto arena = device->allocate(1000, "gradients");
  Alone reduce("reduce");
  fake_nccl::set_registration(ncclInvalidUsage);
  CHECK(reduce.comm->register_memory(arena->data(), 1000).find("NCCL cannot register memory here: ") == 0);
  fake_nccl::set_registration(ncclSuccess, false);
  CHECK(reduce.comm->register_memory(arena->data(), 1000).find("NCCL does not use registered memory") !=
        std::string::npos);
  reduce.all_reduce(10);
  CHECK(fake_nccl::registered().ever == 0);
}

TEST_CASE("a table with an unknown word is refused with the list of known words") {
  const auto refused = [](const std::string& text, const std::string& part) {
    INFO(text);
    CHECK_THROWS_WITH(NcclTable::parse(text, "table.json"), Catch::Contains(part));
    CHECK_THROWS_AS(NcclTable::parse(text, "table.json"), ConfigError);
  };
  refused("{", "table.json");
  refused(R"({"channel": {}})", "unknown key");
  refused(R"({"channels": {"reduce": {"ctas": 1}}})",
          "min_ctas, max_ctas, cluster_size, traffic_class, policy and choices");
  refused(R"({"channels": {"reduce": {"max_ctas": 0}}})", "need 1 to 64");
  refused(R"({"channels": {"reduce": {"min_ctas": 9, "max_ctas": 8}}})", "min_ctas 9 exceeds max_ctas 8");
  refused(R"({"channels": {"reduce": {"choices": [{"verb": "all_reduce", "algorithm": "rings", "protocol": "ll"}]}}})",
          "need one of tree, ring");
  refused(R"({"channels": {"reduce": {"choices": [{"verb": "send", "algorithm": "ring", "protocol": "ll"}]}}})",
          "need one of all_reduce");
  refused(R"({"channels": {"reduce": {"choices": [{"verb": "all_reduce", "algorithm": "ring"}]}}})", "protocol");
  refused(R"({"channels": {"reduce": {"choices": [{"verb": "all_reduce", "algorithm": "ring", )"
          R"("protocol": "ll", "to": "1KiB"}]}}})",
          "unknown key");
  CHECK_THROWS_AS(NcclTable::read_text("/no/such/table.json"), ConfigError);
  CHECK(NcclTable::parse("", "none").of("reduce").choices.empty());
}

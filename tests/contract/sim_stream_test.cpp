// SPDX-License-Identifier: Apache-2.0
// The stream contract on the sim device, and its times by hand.

#include "comm/sim/sim_communicator.h"
#include "tests/contract/stream_contract.h"

using namespace slipstream;

TEST_CASE("the sim device keeps the stream contract") {
  contract::check_stream_contract([] { return make_sim_device({}); });
}

TEST_CASE("virtual times are those of the costs") {
  const auto device = make_sim_device({.flops_per_second = 1e9, .bytes_per_second = 1e8});
  const auto a = device->make_stream({.name = "a"});
  const auto b = device->make_stream({.name = "b"});
  const auto event = device->make_event(4);
  const Work by_flops{.name = "flops", .cost = {.flops = 3000, .bytes = 200}};  // 3000 ns against 2000 ns
  const Work by_bytes{.name = "bytes", .cost = {.flops = 1000, .bytes = 700}};  // 1000 ns against 7000 ns
  const Frame frame;
  a->launch(by_flops, frame);
  a->launch(by_bytes, frame);
  a->record(*event);
  b->launch(by_flops, frame);
  b->wait(*event, frame);
  b->launch(by_flops, frame);
  std::vector<Span> spans;
  a->drain(spans);
  b->drain(spans);
  REQUIRE(spans.size() == 5);
  CHECK(spans[0].end_ns == 3000);
  CHECK(spans[1].end_ns == 10000);
  CHECK(event->completed_ns() == 10000);
  CHECK(spans[3].kind == Span::Kind::wait);
  CHECK(spans[3].begin_ns == 3000);
  CHECK(spans[3].end_ns == 10000);
  CHECK(spans[4].end_ns == 13000);
  CHECK(device->now_ns() == 13000);
}

TEST_CASE("a simulated petabyte is counted and not allocated") {
  const auto device = make_sim_device({});
  const auto memory = device->allocate(int64_t{1} << 50, "weights");
  CHECK(memory->size_bytes() == int64_t{1} << 50);
  CHECK(memory->data() != nullptr);
}

TEST_CASE("simulated verbs carry accesses and bytes, and are checked") {
  const auto group = comm::make_sim_communicator(1, 4);
  const Work work = group->all_gather({.from = {0, 0, 400}, .to = {1, 0, 1600}, .elems = 100});
  CHECK(work.cost.bytes == 1200);
  REQUIRE(work.reads.size() == 1);
  REQUIRE(work.writes.size() == 1);
  CHECK(work.reads[0] == Slice{0, 0, 400});
  CHECK(work.writes[0] == Slice{1, 0, 1600});
  CHECK_THROWS_AS(group->all_gather({.from = {0, 0, 400}, .to = {1, 0, 1599}, .elems = 100}), CommError);
  CHECK_THROWS_AS(comm::make_sim_communicator(4, 4), CommError);
}

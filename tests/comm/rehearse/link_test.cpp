// SPDX-License-Identifier: Apache-2.0
// The link formula against a count of the messages that the algorithms send.

#include "comm/link.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "comm/rehearse/price.h"
#include "engine/base/units.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::comm;

namespace {

/// Sizes of n parts of `elems`, of which the first parts are whole.
std::vector<int64_t> parts_of(int64_t elems, int n) {
  const int64_t part = ceil_div(elems, n);
  std::vector<int64_t> sizes;
  for (int r = 0; r < n; ++r) sizes.push_back(std::clamp<int64_t>(elems - r * part, 0, part));
  return sizes;
}

/// Elements that the busiest rank sends in an all-reduce made of a reduce-scatter and an all-gather of parts.
int64_t all_reduce_elems(Algorithm algorithm, int64_t elems, int n) {
  const std::vector<int64_t> parts = parts_of(elems, n);
  int64_t most = 0;
  for (int r = 0; r < n; ++r) {
    int64_t sent = 0;
    for (int step = 1; step < n; ++step) {
      if (algorithm == Algorithm::direct) {
        const int other = (r + step) % n;
        sent += parts[static_cast<size_t>(other)] + parts[static_cast<size_t>(r)];
      } else {
        // Rank r passes part r-step+1 on while reducing, and part r-step+2 while gathering: in each phase all parts but
        // one.
        sent += parts[static_cast<size_t>((r - step + 1 + n) % n)] + parts[static_cast<size_t>((r - step + 2 + n) % n)];
      }
    }
    most = std::max(most, sent);
  }
  return most;
}

}  // namespace

TEST_CASE("all_reduce is charged the bytes that the busiest rank sends") {
  for (int n : {2, 3, 4, 5, 7, 8, 16})
    for (int64_t elems : {1, 2, 3, 7, 8, 15, 16, 17, 1000, 4096, 4097}) {
      INFO(n << " ranks, " << elems << " elements");
      CHECK(wire_bytes(Op::all_reduce, Algorithm::direct, n, elems, DType::f32) ==
            4 * all_reduce_elems(Algorithm::direct, elems, n));
      const int64_t ring = wire_bytes(Op::all_reduce, Algorithm::ring, n, elems, DType::f32);
      const int64_t counted = 4 * all_reduce_elems(Algorithm::ring, elems, n);
      CHECK(ring >= counted);
      CHECK(ring <= counted + 4 * 2 * ceil_div(elems, n));
      if (elems % n == 0) {
        CHECK(ring == 2 * (n - 1) * elems / n * 4);
        CHECK(ring == wire_bytes(Op::all_reduce, Algorithm::direct, n, elems, DType::f32));
      }
    }
}

TEST_CASE("the other verbs: bytes and rounds") {
  const Link link{1e9, 1000};
  for (int n : {2, 3, 8}) {
    for (Op op : {Op::reduce_scatter, Op::all_gather, Op::all_to_all})
      for (Algorithm algorithm : {Algorithm::direct, Algorithm::ring}) {
        const WireCost cost = wire_cost(op, algorithm, n, 10, DType::bf16, link);
        CHECK(cost.bytes == (n - 1) * 20);
        CHECK(cost.wire_ns == (n - 1) * 20);
        CHECK(cost.latency_ns == 1000 * (algorithm == Algorithm::ring ? n - 1 : 1));
      }
    // All pairs exchange at once, and the rows of a source that stay on its rank do not travel.
    const Route route{.experts = 2, .row_elems = 3, .source_rows = 10 * n, .bound_rows = 20 * n};
    for (Algorithm algorithm : {Algorithm::direct, Algorithm::ring}) {
      const WireCost cost = wire_cost(Op::all_to_all_v, algorithm, n, balanced_elems(route, n), DType::bf16, link);
      CHECK(cost.bytes == (n - 1) * 10 * 3 * 2);
      CHECK(cost.latency_ns == 1000);
    }
    CHECK(wire_cost(Op::all_reduce, Algorithm::direct, n, 10, DType::f32, link).latency_ns == 2000);
    CHECK(wire_cost(Op::all_reduce, Algorithm::ring, n, 10, DType::f32, link).latency_ns == 2000 * (n - 1));
    for (Op op : {Op::send, Op::recv, Op::exchange}) {
      CHECK(wire_cost(op, Algorithm::direct, n, 10, DType::f64, link).bytes == 80);
      CHECK(wire_cost(op, Algorithm::direct, n, 10, DType::f64, link).latency_ns == 1000);
    }
  }
}

TEST_CASE("on a measured host, an all_to_all_v has the times of an exchange") {
  HostTimes host{.cores = 8};
  host.verbs.push_back({.verb = "exchange", .ranks = 4, .latency_ns = 700, .bytes_per_second = 2'000'000'000});
  const RooflinePrice price({.measured = std::make_shared<HostTimes>(host)}, {1e9, 100});
  const WireCost cost = price.wire(Op::all_to_all_v, Algorithm::direct, Axis::data, 4, 500, DType::f32);
  CHECK(cost.bytes == 3 * 2000);
  CHECK(cost.wire_ns == 3000);
  CHECK(cost.latency_ns == 700);
}

TEST_CASE("one rank and local ops are free; an unlimited link has no wire time; fractions of a ns round up") {
  CHECK(wire_cost(Op::all_reduce, Algorithm::ring, 1, 100, DType::f32, {1e9, 1000}).latency_ns == 0);
  CHECK(wire_cost(Op::all_reduce, Algorithm::ring, 1, 100, DType::f32, {1e9, 1000}).bytes == 0);
  CHECK(wire_cost(Op::update, Algorithm::ring, 4, 100, DType::f32, {1e9, 1000}).bytes == 0);
  CHECK(wire_cost(Op::send, Algorithm::direct, 2, 100, DType::f32, {0, 5}).wire_ns == 0);
  CHECK(wire_cost(Op::send, Algorithm::direct, 2, 1, DType::u8, {3e9, 5}).wire_ns == 1);
  CHECK(wire_cost(Op::send, Algorithm::direct, 2, 0, DType::u8, {3e9, 5}).wire_ns == 0);
}

TEST_CASE("durations beyond the range of virtual time are cut to its longest transfer") {
  for (int64_t elems : {int64_t{1} << 20, int64_t{1} << 40, int64_t{1} << 50}) {
    const WireCost cost = wire_cost(Op::all_reduce, Algorithm::direct, 512, elems, DType::f32, {1, 60'000'000'000});
    CHECK(cost.wire_ns == kLongestTransferNs);
    CHECK(cost.latency_ns == 120'000'000'000);
  }
  CHECK(wire_cost(Op::send, Algorithm::direct, 2, 1, DType::f32, {1, 0}).wire_ns == 4'000'000'000);
}

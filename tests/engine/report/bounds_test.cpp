// SPDX-License-Identifier: Apache-2.0
// The lower bound of a data-parallel step equals sums computed by hand.
//
// There are three layers and 4 ranks: each element of a gradient is sent twice, 3/4 of it each time, so that at 6 bytes
// per nanosecond a float takes one nanosecond. Forward takes 100 ns a layer and backward 200, so that gradients are
// ready at 500, 700 and 900.

#include "engine/report/bounds.h"

#include <array>

#include "engine/plan/job.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

constexpr int kLayers = 3;

struct Example {
  std::array<int64_t, kLayers> elems = {100, 100,
                                        100};  // in the order in which they complete: the last layer's come first
  std::vector<int> buckets = {1, 1, 1};        // how many parts each has
  int64_t padded_to = 1;                       // elements of a bucket are padded to a multiple of this
  double update_ns_per_elem = 0.1;
  int64_t clip_ns = -1;  // negative: there is no clipping
  int micro_batches = 1;
  double bytes_per_ns = 6;
  int64_t latency_ns = 50;
  int ranks = 4;
  DType wire = DType::f32;
  int64_t tied_capacity = 0;  // more than 0: a table is tied to the part that completes first, and its rows travel last

  IdealBound bound() const {
    Job job;
    job.options.clip = clip_ns >= 0;
    job.mesh = Mesh({.data = ranks});
    job.groups = {{.placement = {.reduce_wire = wire}}};
    job.buffers.micro_batches = micro_batches;
    std::vector<int64_t> spine_ns;
    const auto on_spine = [&](Op op, uint32_t piece, int micro_batch, int64_t ns) {
      SpineItem item;
      item.op = op;
      item.piece = piece;
      item.micro_batch = micro_batch;
      job.train().spine.push_back(item);
      spine_ns.push_back(ns);
    };
    for (int m = 0; m < micro_batches; ++m) {
      for (uint32_t layer = 0; layer < kLayers; ++layer) on_spine(Op::compute, layer, m, 100);
      for (uint32_t i = 0; i < kLayers; ++i) on_spine(Op::compute, kLayers + i, m, 200);
    }
    for (uint32_t i = 0; i < kLayers; ++i) {
      job.model.backward.push_back(kLayers + i);
      job.layout.parts.push_back({.part = {.parameter = i, .elems = elems[i]}, .ready_position = i});
    }
    uint32_t part = 0;
    for (int count : buckets) {
      Bucket bucket{.offset_elems = job.layout.flat_elems, .first_part = part};
      for (; bucket.part_count < static_cast<uint32_t>(count); ++bucket.part_count) bucket.elems += elems[part++];
      bucket.elems = (bucket.elems + padded_to - 1) / padded_to * padded_to;
      job.layout.flat_elems += bucket.elems;
      job.layout.buckets.push_back(bucket);
      if (clip_ns >= 0) on_spine(Op::sum_squares, 0, 0, 1);
    }
    if (clip_ns >= 0) on_spine(Op::clip, 0, 0, clip_ns);
    for (const Bucket& bucket : job.layout.buckets)
      on_spine(Op::update, 0, 0, static_cast<int64_t>(update_ns_per_elem * static_cast<double>(bucket.elems) + 0.5));
    if (tied_capacity > 0)
      job.model.tied = {.split = true, .parameter = 0, .as_rows = true, .capacity = tied_capacity, .width = 5};
    return ideal_bound(
        job, {.bytes_per_second = bytes_per_ns * 1e9, .latency_ns = latency_ns, .ranks = ranks, .spine_ns = spine_ns});
  }
};

}  // namespace

TEST_CASE("ideal bound: the last gradient is followed by its transfer, one latency and its update", "[report]") {
  const IdealBound bound = Example{}.bound();
  CHECK(bound.compute_ns == 900 + 30);
  CHECK(bound.wire_ns == 300);
  // The other gradients end sooner: 500 + 300 and 700 + 200 are less than 900 + 100.
  CHECK(bound.bound_ns == 900 + 100 + 50 + 10);
  CHECK(Example{.latency_ns = 0}.bound().bound_ns == 1010);
  CHECK(Example{.wire = DType::bf16}.bound().bound_ns == 900 + 50 + 50 + 10);
}

TEST_CASE("ideal bound: a step that computes longer than its last gradient travels is its compute", "[report]") {
  // The last update begins at 1050. The two before it could be done by then, but there is time for neither.
  CHECK(Example{.update_ns_per_elem = 2}.bound().bound_ns == 900 + 3 * 200);
  CHECK(Example{.update_ns_per_elem = 0.75}.bound().bound_ns == 900 + 3 * 75);  // == 900 + 100 + 50 + 75
  CHECK(Example{.update_ns_per_elem = 0.74}.bound().bound_ns == 900 + 100 + 50 + 74);
}

TEST_CASE("ideal bound: a slow wire is busy from the first gradient on, or from a large one", "[report]") {
  const IdealBound slow = Example{.bytes_per_ns = 0.6}.bound();
  CHECK(slow.wire_ns == 3000);
  CHECK(slow.bound_ns == 500 + 3000 + 50 + 10);
  CHECK(Example{.elems = {100, 800, 100}}.bound().bound_ns == 700 + 900 + 50 + 10);
  CHECK(Example{.elems = {100, 100, 800}}.bound().bound_ns == 900 + 800 + 50 + 80);
  CHECK(Example{.elems = {800, 100, 100}}.bound().bound_ns == 500 + 1000 + 50 + 10);
}

TEST_CASE("ideal bound: with clipping the factor and all updates follow the last sum", "[report]") {
  const IdealBound bound = Example{.clip_ns = 7}.bound();
  CHECK(bound.compute_ns == 900 + 3 + 7 + 30);
  CHECK(bound.bound_ns == 900 + 100 + 50 + 7 + 30);
}

TEST_CASE("ideal bound: buckets and their padding change nothing", "[report]") {
  for (int64_t clip_ns : {-1, 7})
    for (double bytes_per_ns : {6.0, 0.6})
      for (int64_t padded_to : {1, 16, 64}) {
        CAPTURE(clip_ns, bytes_per_ns, padded_to);
        const Example one{.elems = {200, 300, 100},
                          .buckets = {3},
                          .update_ns_per_elem = 0.1,
                          .clip_ns = clip_ns,
                          .bytes_per_ns = bytes_per_ns};
        Example other = one;
        other.padded_to = padded_to;
        for (const std::vector<int>& buckets : std::vector<std::vector<int>>{{3}, {1, 1, 1}, {2, 1}, {1, 2}}) {
          other.buckets = buckets;
          // Each update is a whole number of nanoseconds.
          CHECK(std::abs(other.bound().bound_ns - one.bound().bound_ns) <= static_cast<int64_t>(buckets.size()));
        }
        const int64_t sums = bytes_per_ns > 1 ? 500 + 600 : 500 + 6000;  // 700 + 400 is as late as the first
        CHECK(one.bound().bound_ns == sums + 50 + (clip_ns < 0 ? 10 : 7 + 60));
      }
}

TEST_CASE("ideal bound: gradients are ready in the last micro-batch", "[report]") {
  CHECK(Example{.micro_batches = 3}.bound().bound_ns == 3 * 900 + 100 + 50 + 10);
}

TEST_CASE("ideal bound: the rows of a tied table travel last, and its update follows them", "[report]") {
  // Three other ranks send 2 rows of 5 floats and an id: 144 bytes, which take 24 ns at 6 per nanosecond. The table has
  // 200 elements.
  const Example tied{.elems = {200, 100, 100}, .tied_capacity = 2};
  CHECK(tied.bound().wire_ns == 400 + 24);
  CHECK(tied.bound().bound_ns == 900 + 100 + 24 + 50 + 20);
}

TEST_CASE("ideal bound: a single rank has no communication", "[report]") {
  CHECK(Example{.clip_ns = 7, .ranks = 1}.bound().bound_ns == 900 + 3 + 7 + 30);
  // Of two ranks, each sends every element twice, half of it each time.
  CHECK(Example{.elems = {120, 120, 120}, .ranks = 2}.bound().bound_ns == 900 + 80 + 50 + 12);
}

// SPDX-License-Identifier: Apache-2.0
// Buckets: what they cover, their sizes, and the exposed time on a wire, against a model of a wire in a few lines.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "engine/plan/layout.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

/// `count` parameters of `elems` each; the gradient of one is complete after every backward piece.
ModelSpec even_model(int count, int64_t elems) {
  ModelSpec model;
  model.layers = count;
  for (int p = 0; p < count; ++p) {
    model.parameters.push_back(
        {.tensors = {{.name = "p" + std::to_string(p), .shape = {elems}}}, .layer = p, .elems = elems});
    model.backward.push_back(static_cast<uint32_t>(model.pieces.size()));
    model.pieces.push_back({.name = "p", .layer = p, .works = {}, .ready = {{static_cast<uint32_t>(p), 0, elems}}});
  }
  return model;
}

ParameterLayout cut(const ModelSpec& model, int64_t first, int64_t largest) {
  return place_parameters(model, {.bucket_bytes = largest, .first_bucket_bytes = first});
}

/// Returns the time from the last piece to the arrival of the last byte, in pieces: each piece takes 1, and the
/// gradients of one piece take `ratio` on the wire.
double exposed(const ParameterLayout& layout, size_t pieces, double ratio) {
  const double ratio_per_elem = ratio * static_cast<double>(pieces) / static_cast<double>(layout.flat_elems);
  double wire = 0;
  for (const Bucket& bucket : layout.buckets)
    wire = std::max(wire, bucket.ready_position + 1.0) + static_cast<double>(bucket.elems) * ratio_per_elem;
  return wire - static_cast<double>(pieces);
}

/// The time that pieces in forward order wait for buckets gathered in that order, beginning before the first of them.
double gather_exposed(const ParameterLayout& layout, size_t pieces, double ratio) {
  double wire = 0, compute = 0;
  for (auto bucket = layout.buckets.rbegin(); bucket != layout.buckets.rend(); ++bucket) {
    const double share =
        static_cast<double>(bucket->elems) * static_cast<double>(pieces) / static_cast<double>(layout.flat_elems);
    wire += ratio * share;
    compute = std::max(compute, wire) + share;
  }
  return compute - static_cast<double>(pieces);
}

}  // namespace

TEST_CASE("layout: buckets follow each other and hold every gradient once", "[layout]") {
  for (const int count : {1, 2, 7, 64})
    for (const int64_t first : {64, 256, 4096})
      for (const int64_t largest : {64, 1000, 4096, 1 << 30}) {
        const ParameterLayout layout = cut(even_model(count, 64), first, largest);
        CAPTURE(count, first, largest);
        int64_t offset = 0;
        uint32_t part = 0;
        for (const Bucket& bucket : layout.buckets) {
          CHECK(bucket.offset_elems == offset);
          CHECK(bucket.first_part == part);
          offset += bucket.elems;
          part += bucket.part_count;
        }
        CHECK(offset == layout.flat_elems);
        CHECK(part == static_cast<uint32_t>(count));
      }
}

TEST_CASE("layout: the first bucket is small, and towards the end each takes a quarter of the remaining bytes",
          "[layout]") {
  const ParameterLayout layout = cut(even_model(100, 256), 1 << 10, 16 << 10);  // each parameter has 1 KiB
  std::vector<int64_t> kib;
  for (const Bucket& bucket : layout.buckets) kib.push_back(bucket.elems * 4 >> 10);
  CHECK(kib == std::vector<int64_t>{1, 16, 16, 16, 13, 9, 7, 5, 4, 3, 2, 2, 1, 1, 1, 1, 1, 1});
}

TEST_CASE("layout: with unequal parameters each bucket comes nearest to a quarter of the remaining bytes", "[layout]") {
  const uint64_t seed = 31;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int trial = 0; trial < 20; ++trial) {
    ModelSpec model = even_model(40, 64);
    int64_t left = 0;
    for (ParameterSpec& parameter : model.parameters) {
      parameter.elems = 64 * (1 + static_cast<int64_t>(random() % 40));
      parameter.tensors[0].shape = {parameter.elems};
      left += parameter.elems;
    }
    for (size_t p = 0; p < model.pieces.size(); ++p) model.pieces[p].ready[0].elems = model.parameters[p].elems;
    const ParameterLayout layout = cut(model, 1, 1 << 30);
    REQUIRE(layout.flat_elems == left);
    for (size_t b = 0; b < layout.buckets.size(); ++b) {
      const Bucket& bucket = layout.buckets[b];
      const auto off = [&](int64_t elems) { return std::abs(4 * elems - left); };
      const int64_t last = layout.parts[bucket.first_part + bucket.part_count - 1].part.elems;
      CAPTURE(trial, b, bucket.elems, left);
      // The first bucket starts the wire with one parameter.
      if (b > 0 && bucket.part_count > 1) CHECK(off(bucket.elems) <= off(bucket.elems - last));
      if (b > 0 && b + 1 < layout.buckets.size())
        CHECK(off(bucket.elems) <= off(bucket.elems + layout.parts[bucket.first_part + bucket.part_count].part.elems));
      left -= bucket.elems;
    }
  }
}

TEST_CASE("layout: shrinking buckets expose only the last one while the wire takes at most 3/4 of compute",
          "[layout]") {
  constexpr int kPieces = 256;
  const ModelSpec model = even_model(kPieces, 256);
  const int64_t first = 1 << 10, largest = 32 << 10;
  const ParameterLayout layout = cut(model, first, largest), equal = cut(model, largest, largest);
  for (const double ratio : {0.125, 0.25, 0.5, 0.75}) {
    const double last = static_cast<double>(layout.buckets.back().elems) / 256 * ratio;
    CAPTURE(ratio, last);
    CHECK(exposed(layout, kPieces, ratio) == Approx(last));
    CHECK(exposed(equal, kPieces, ratio) == Approx(32 * ratio));
    CHECK(gather_exposed(layout, kPieces, ratio) == Approx(last));
    CHECK(gather_exposed(equal, kPieces, ratio) == Approx(32 * ratio));
  }
  // A slow wire never rests once the second bucket is ready, which is 1 + 32 pieces after the start.
  CHECK(exposed(layout, kPieces, 2) == Approx(33 + 2 * (kPieces - 1) - kPieces));
}

TEST_CASE("layout: a whole matrix is in one shard, and buckets that could be longer have little padding", "[layout]") {
  const uint64_t seed = 47;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  int several = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const int shards = 1 + trial % 5;
    ModelSpec model = even_model(40, 64);
    LayoutOptions options{.bucket_bytes = 8 << 10,
                          .first_bucket_bytes = 1 << 10,
                          .group_size = shards,
                          .sharded = true,
                          .groups = {{.shards = shards}, {.shards = shards}}};
    int64_t matrix_elems = 0;
    for (uint32_t p = 0; p < 40; ++p) {
      ParameterSpec& parameter = model.parameters[p];
      const bool matrix = p % 4 != 3;  // the others form a second group
      parameter.elems = (matrix ? 128 : 1) + static_cast<int64_t>(random() % (matrix ? 640 : 90));
      const int64_t first = matrix ? 16 * (1 + static_cast<int64_t>(random() % 8)) : parameter.elems;
      model.pieces[p].ready = {{p, 0, first}};
      if (first < parameter.elems) model.pieces[p].ready.push_back({p, first, parameter.elems - first});
      options.group_of.push_back(matrix ? 0 : 1);
      options.matrix_costs.push_back(matrix ? parameter.elems * parameter.elems : 0);
      if (matrix) matrix_elems += parameter.elems;
    }
    const ParameterLayout layout = place_parameters(model, options);
    CAPTURE(trial, shards);
    int64_t buckets_end = 0, parts_end = 0, held = 0;
    int of_matrices = 0;
    for (const Bucket& bucket : layout.buckets) {
      CHECK(bucket.offset_elems == buckets_end);
      CHECK(bucket.elems % (16 * shards) == 0);
      buckets_end += bucket.elems;
      int64_t elems = 0;
      for (uint32_t p = bucket.first_part; p < bucket.first_part + bucket.part_count; ++p) {
        const PlacedPart& placed = layout.parts[p];
        CHECK(placed.offset_elems >= parts_end);
        const int64_t begin = placed.offset_elems - placed.part.begin_elems;
        CHECK(layout.parameter_offsets[placed.part.parameter] == begin);
        CHECK(begin % 16 == 0);
        CHECK(placed.ready_position <= bucket.ready_position);
        parts_end = placed.offset_elems + placed.part.elems;
        CHECK(parts_end <= buckets_end);
        elems += placed.part.elems;
        if (bucket.group == 1) continue;
        // The shard holds all of the matrix, whose gradient has two parts.
        const int64_t shard_elems = bucket.elems / shards, first = begin - bucket.offset_elems;
        CHECK(first >= 0);
        CHECK(first / shard_elems == (first + model.parameters[placed.part.parameter].elems - 1) / shard_elems);
      }
      held += elems;
      if (bucket.group == 1) continue;
      ++of_matrices;
      CHECK((bucket.elems - elems) * 8 <=
            elems + 8 * 16 * (shards + bucket.part_count));  // and what the alignment adds
    }
    CHECK(buckets_end == layout.flat_elems);
    CHECK(held >= matrix_elems);
    several += of_matrices > 1;
  }
  CHECK(several > 30);
}

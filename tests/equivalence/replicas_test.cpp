// SPDX-License-Identifier: Apache-2.0
// Replicas hold equal bits on every layout, and one flipped bit names the rank and the tensor.

#include "trainer/runtime/loop/replicas.h"

#include <mutex>
#include <set>

#include "tests/equivalence/table.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;
using runtime::Drift;
using runtime::find_drift;
using runtime::HeldBits;

namespace {

std::vector<std::shared_ptr<const Job>> stages_of(const Layout& layout) {
  std::vector<std::shared_ptr<const Job>> stages;
  for (auto& job : make_jobs(layout, 0)) stages.push_back(std::move(job));
  return stages;
}

/// Changes the lowest bit of a byte on the device.
void flip(runtime::Rank& rank, std::byte* at) {
  std::byte byte;
  rank.device().copy_to_host(&byte, at, 1);
  byte ^= std::byte{1};
  rank.device().copy_from_host(at, &byte, 1);
}

/// The last rank's hashes with one flipped bit in a tensor.
struct Flipped {
  size_t tensor = 0;
  bool master = false;
  std::vector<HeldBits> bits;
};

struct Seen {
  std::vector<std::vector<HeldBits>> by_rank;
  std::vector<Flipped> flipped;
};

Seen look_at(Layout layout) {
  const std::vector<std::shared_ptr<const Job>> stages = stages_of(layout);
  const auto names = runtime::tensors_of(stages);
  const int last = layout.world() - 1;
  Seen seen{.by_rank = std::vector<std::vector<HeldBits>>(static_cast<size_t>(layout.world())), .flipped = {}};
  std::mutex mutex;
  layout.inspect = [&](runtime::Rank& rank) {
    const std::lock_guard lock(mutex);
    const Job& job = rank.job();
    seen.by_rank[static_cast<size_t>(job.options.rank)] = runtime::replicated_bits(rank, stages);
    if (job.options.rank != last) return;
    for (size_t p = 0; p < job.model.parameters.size(); ++p) {
      const NamedTensor& tensor = job.model.parameters[p].tensors.front();
      const auto number = static_cast<size_t>(std::distance(names.begin(), names.find(tensor.name)));
      for (size_t b = 0; b < job.storage.size(); ++b) {
        const BucketStorage& storage = job.storage[b];
        const int64_t at = job.layout.parameter_offsets[p] + tensor.begin_elems;
        if (const int64_t in_bucket = at - job.layout.buckets[b].offset_elems;
            in_bucket >= 0 && in_bucket < job.layout.buckets[b].elems && storage.values.size_bytes > 0) {
          std::byte* address = rank.weights_at(storage.values) + in_bucket * size_of(job.model.dtype);
          flip(rank, address);
          seen.flipped.push_back({number, false, runtime::replicated_bits(rank, stages)});
          flip(rank, address);
        }
        if (const int64_t in_shard = at - storage.shard_offset_elems;
            in_shard >= 0 && in_shard < storage.shard_elems && !(storage.master == storage.working)) {
          std::byte* address = rank.weights_at(storage.master) + in_shard * size_of(DType::f32);
          flip(rank, address);
          seen.flipped.push_back({number, true, runtime::replicated_bits(rank, stages)});
          flip(rank, address);
        }
      }
    }
  };
  train(layout, 2);
  return seen;
}

}  // namespace

TEST_CASE("replicas: no layout drifts by itself, and one flipped bit names its rank and tensor", "[replicas]") {
  int layouts = 0, flips = 0, seen_flips = 0, certain = 0;
  std::vector<Layout> rows = strategies(test_everything());
  for (const int stage : {0, 1, 3})
    rows.push_back(with(rows.front(), [&](Layout& l) {
      l.name = "3 ranks in bfloat16, ZeRO-" + std::to_string(stage);
      l.ranks = 3, l.zero_stage = stage, l.model.dtype = DType::bf16, l.model.split_tied_embedding = false;
      l.reduce_mode = ReduceMode::bucketed;
    }));
  for (const Layout& layout : rows) {
    CAPTURE(layout.name);
    Seen seen = look_at(layout);
    REQUIRE(!find_drift(seen.by_rank));
    ++layouts;
    // The places that another rank has as well.
    std::set<std::array<int64_t, 5>> elsewhere;
    for (size_t r = 0; r + 1 < seen.by_rank.size(); ++r)
      for (const HeldBits& bits : seen.by_rank[r]) elsewhere.insert(bits.place);
    const int last = layout.world() - 1;
    const bool has_replicas = layout.ranks * layout.context > 1;
    const std::vector<HeldBits> clean = seen.by_rank.back();
    for (const Flipped& flipped : seen.flipped) {
      CAPTURE(flipped.tensor, flipped.master);
      ++flips;
      bool shared = false;
      for (const HeldBits& bits : clean)
        shared |= bits.place[0] == static_cast<int64_t>(flipped.tensor) && bits.place[1] == flipped.master &&
                  elsewhere.contains(bits.place);
      // Data replicas share all weights of compute; masters without ZeRO too. Two ranks that divide experts share none.
      const bool divided = layout.expert == layout.ranks * layout.context && layout.expert > 1;
      if (has_replicas && !divided && (!flipped.master || layout.zero_stage == 0)) CHECK(shared);
      seen.by_rank.back() = flipped.bits;
      const std::optional<Drift> drift = find_drift(seen.by_rank);
      REQUIRE(drift.has_value() == shared);
      if (!shared) continue;
      ++seen_flips;
      CHECK(drift->tensor == flipped.tensor);
      CHECK(std::count(drift->ranks.begin(), drift->ranks.end(), last) == 1);
      certain += drift->is_certain;
      if (drift->is_certain) CHECK(drift->ranks == std::vector<int>{last});
    }
  }
  CHECK(certain > 0);
  std::printf("  COUNTED %d layouts, %d flipped bits, %d of them in replicas, %d with a majority\n", layouts, flips,
              seen_flips, certain);
}

TEST_CASE("replicas: the minority of any tensor is named; without a majority every rank of the first one",
          "[replicas]") {
  const auto bits = [](int64_t tensor, uint64_t hash) { return HeldBits{.place = {tensor, 0, 0, 0, 8}, .hash = hash}; };
  const auto drift_of = [](std::vector<std::vector<HeldBits>> by_rank) { return find_drift(by_rank); };
  CHECK(!drift_of({}));
  CHECK(!drift_of({{bits(1, 5)}, {bits(1, 5)}, {bits(2, 6)}}));  // tensor 2 is on one rank
  const std::optional<Drift> one =
      drift_of({{bits(1, 5), bits(2, 6)}, {bits(1, 5), bits(2, 7)}, {bits(1, 5), bits(2, 6)}});
  REQUIRE(one);
  CHECK((one->tensor == 2 && one->ranks == std::vector<int>{1} && one->is_certain));
  // Two ranks drift in different tensors.
  const std::optional<Drift> two =
      drift_of({{bits(3, 5), bits(4, 6)}, {bits(3, 5), bits(4, 7)}, {bits(3, 1), bits(4, 6)}});
  REQUIRE(two);
  CHECK((two->tensor == 3 && two->ranks == std::vector<int>{1, 2} && two->is_certain));
  const std::optional<Drift> tie = drift_of({{bits(1, 5)}, {bits(2, 5)}, {bits(1, 6)}});
  REQUIRE(tie);
  CHECK((tie->tensor == 1 && tie->ranks == std::vector<int>{0, 2} && !tie->is_certain));
  const std::optional<Drift> even = drift_of({{bits(1, 5)}, {bits(1, 5)}, {bits(1, 6)}, {bits(1, 6)}});
  REQUIRE(even);
  CHECK((even->ranks == std::vector<int>{0, 1, 2, 3} && !even->is_certain));
  // Two of four are no majority, even if no other two agree.
  const std::optional<Drift> most = drift_of({{bits(1, 5)}, {bits(1, 5)}, {bits(1, 6)}, {bits(1, 7)}});
  REQUIRE(most);
  CHECK((most->ranks == std::vector<int>{0, 1, 2, 3} && !most->is_certain));
}

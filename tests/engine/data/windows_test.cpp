// SPDX-License-Identifier: Apache-2.0
// Laws of the sampler: each sample once per epoch, for every layout and every restart position.

#include "engine/data/datasets/windows.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "tests/engine/data/disk.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::data;
using namespace slipstream::tests;

namespace {

/// W of windows.h.
int64_t windows_of(int64_t tokens, int64_t length) { return std::max<int64_t>(1, tokens / length - 1); }

}  // namespace

TEST_CASE("permutation: a bijection for every size", "[data]") {
  const uint64_t seed = 31;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  std::vector<uint64_t> sizes(300);
  std::iota(sizes.begin(), sizes.end(), 1);
  for (const uint64_t size : {509, 511, 512, 513, 4093, 4096, 4097, 15683, 65537}) sizes.push_back(size);
  for (int i = 0; i < 20; ++i) sizes.push_back(1 + random() % 5000);
  for (const uint64_t size : sizes) {
    const Permutation permutation(size, random(), random());
    std::vector<bool> hit(size, false);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t to = permutation(i);
      if (to >= size || hit[to]) FAIL("size " << size << ": " << i << " goes to " << to);
      hit[to] = true;
    }
  }
}

TEST_CASE("permutation: sizes that do not fit 32 bits stay inside and do not collide", "[data]") {
  for (const uint64_t size : {(uint64_t{1} << 32) + 1, (uint64_t{1} << 40) - 7, (uint64_t{1} << 62)}) {
    const Permutation permutation(size, 1, 2);
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < 1000; ++i) {
      const uint64_t to = permutation(i * (size / 1000));
      CHECK(to < size);
      seen.insert(to);
    }
    CHECK(seen.size() == 1000);
  }
}

TEST_CASE("permutation: all orders are about equally likely", "[data]") {
  // The margin is 5 standard deviations of a binomial; fewer than 4 half-rounds, or a round key that ignores the epoch,
  // exceed it.
  for (const uint64_t size : {2, 3, 4}) {
    const int orders = size == 2 ? 2 : size == 3 ? 6 : 24;
    std::map<std::vector<uint64_t>, int> seen;
    for (uint64_t epoch = 0; epoch < static_cast<uint64_t>(1000 * orders); ++epoch) {
      const Permutation permutation(size, 7, epoch);
      std::vector<uint64_t> order;
      for (uint64_t i = 0; i < size; ++i) order.push_back(permutation(i));
      ++seen[order];
    }
    CHECK(static_cast<int>(seen.size()) == orders);
    for (const auto& [order, times] : seen) CHECK(std::abs(times - 1000) < 160);
  }
  constexpr uint64_t kSize = 100;
  for (const uint64_t position : {uint64_t{0}, uint64_t{1}, kSize - 1}) {
    std::vector<int> hits(kSize, 0);
    for (uint64_t epoch = 0; epoch < 100 * kSize; ++epoch) ++hits[Permutation(kSize, 8, epoch)(position)];
    double chi_squared = 0;
    for (const int hit : hits) chi_squared += (hit - 100.0) * (hit - 100.0) / 100;
    CHECK(chi_squared < 99 + 5 * std::sqrt(2 * 99.0));
    CHECK(chi_squared > 99 - 5 * std::sqrt(2 * 99.0));
  }
}

TEST_CASE("training: an epoch visits each of its windows once, all of them inside the split", "[data]") {
  const uint64_t seed = 32;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int trial = 0; trial < 300; ++trial) {
    const auto length = static_cast<int64_t>(1 + random() % 40);
    const int64_t count =
        length + 1 + static_cast<int64_t>(random() % (trial % 3 == 0 ? 3 : 20 * static_cast<uint64_t>(length)));
    const TrainSampler sampler(
        count, {.sequence_length = length, .micro_batch_size = 1, .global_batch_size = 1, .seed = random()});
    const int64_t windows = windows_of(count, length);
    INFO("T " << length << ", N " << count << ", W " << windows);
    // At most one window and the offset are lost.
    CHECK((windows + 2) * length > count);
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      const int64_t offset = sampler.offset_of(epoch);
      CHECK((offset >= 0 && offset < length));
      std::set<int64_t> begins;
      for (int64_t assignment = 0; assignment < windows; ++assignment)
        begins.insert(sampler.begin_of(epoch * static_cast<uint64_t>(windows) + static_cast<uint64_t>(assignment)));
      CHECK(static_cast<int64_t>(begins.size()) == windows);
      CHECK(*begins.begin() == offset);
      CHECK(*begins.rbegin() == offset + (windows - 1) * length);
      CHECK(*begins.rbegin() + length + 1 <= count);
    }
  }
}

TEST_CASE("training: offsets and orders differ between epochs and seeds, and reach both ends of their range",
          "[data]") {
  const SamplerOptions options{.sequence_length = 8, .micro_batch_size = 1, .global_batch_size = 1, .seed = 1};
  const TrainSampler sampler(1000, options);
  std::set<int64_t> offsets;
  for (uint64_t epoch = 0; epoch < 200; ++epoch) offsets.insert(sampler.offset_of(epoch));
  CHECK(offsets == std::set<int64_t>{0, 1, 2, 3, 4, 5, 6, 7});
  SamplerOptions other = options;
  other.seed = 2;
  const TrainSampler second(1000, other);
  int equal_seeds = 0, equal_epochs = 0;
  const auto windows = static_cast<uint64_t>(windows_of(1000, 8));
  for (uint64_t assignment = 0; assignment < windows; ++assignment) {
    equal_seeds += (sampler.begin_of(assignment) / 8 == second.begin_of(assignment) / 8) ? 1 : 0;
    equal_epochs += (sampler.begin_of(assignment) / 8 == sampler.begin_of(assignment + windows) / 8) ? 1 : 0;
  }
  CHECK(equal_seeds < 10);
  CHECK(equal_epochs < 10);
}

TEST_CASE("training: each sample once per epoch over the ranks of any world size", "[data]") {
  constexpr int64_t kGlobal = 420;  // divisible by 1 to 7
  std::vector<std::vector<int64_t>> expected;
  for (int64_t ranks = 1; ranks <= 7; ++ranks) {
    for (const int64_t rows : {int64_t{1}, int64_t{2}, kGlobal / ranks}) {
      if (kGlobal % (ranks * rows) != 0) continue;
      const TrainSampler sampler(
          64 * 1000 + 17, {.sequence_length = 64, .micro_batch_size = rows, .global_batch_size = kGlobal, .seed = 5});
      INFO(ranks << " ranks, micro-batch " << rows);
      const int64_t windows = windows_of(64 * 1000 + 17, 64);
      std::map<std::pair<uint64_t, int64_t>, int> visits;  // (epoch, window)
      std::vector<std::vector<int64_t>> begins;
      for (int64_t step = 1; step <= 7; ++step) {  // 2940 samples: two and a bit epochs of 999 windows
        begins.emplace_back();
        for (int64_t rank = 0; rank < ranks; ++rank)
          for (int64_t micro = 0; micro < sampler.micro_batches(ranks); ++micro) {
            const SampleRange range = sampler.samples_of(step, rank, ranks, micro);
            REQUIRE(range.count == rows);
            for (uint64_t g = range.begin; g < range.begin + static_cast<uint64_t>(range.count); ++g) {
              begins.back().push_back(sampler.begin_of(g));
              const uint64_t epoch = g / static_cast<uint64_t>(windows);
              ++visits[{epoch, (sampler.begin_of(g) - sampler.offset_of(epoch)) / 64}];
            }
          }
      }
      CHECK(windows == 999);
      CHECK(std::all_of(visits.begin(), visits.end(), [](const auto& visit) { return visit.second == 1; }));
      CHECK(visits.size() == 7 * kGlobal);  // because the first two epochs are complete
      if (expected.empty()) expected = begins;
      CHECK(begins == expected);
      // A run that starts again at step 5 makes a new sampler.
      const TrainSampler again(64 * 1000 + 17, sampler.options());
      CHECK(again.begin_of(again.samples_of(5, 0, ranks, 0).begin) == begins[4][0]);
    }
  }
}

TEST_CASE("training: a layout that does not divide the global batch is refused", "[data]") {
  const TrainSampler sampler(1000, {.sequence_length = 8, .micro_batch_size = 4, .global_batch_size = 12});
  CHECK(sampler.micro_batches(3) == 1);
  CHECK_REFUSED(ConfigError, sampler.micro_batches(2), "global_batch_size = 12", "4 x 2", "global_batch_size = 16");
  CHECK_REFUSED(DataError, TrainSampler(8, sampler.options()), "8 tokens", "= 9");
  CHECK_REFUSED(DataError, EvalSampler(8, sampler.options(), 0), "8 tokens", "= 9");
}

TEST_CASE("evaluation: every window of the split counts once in every layout", "[data]") {
  const uint64_t seed = 33;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int trial = 0; trial < 300; ++trial) {
    const auto length = static_cast<int64_t>(1 + random() % 9);
    const int64_t count = length + 1 + static_cast<int64_t>(random() % 300);
    const auto ranks = static_cast<int64_t>(1 + random() % 7);
    const auto rows = static_cast<int64_t>(1 + random() % 5);
    const auto global = static_cast<int64_t>(1 + random() % 10);
    const auto batches = static_cast<int64_t>(random() % 4);
    const EvalSampler sampler(count, {.sequence_length = length, .micro_batch_size = rows, .global_batch_size = global},
                              batches);
    INFO("T " << length << ", N " << count << ", R " << ranks << ", B " << rows << ", G " << global << ", batches "
              << batches);
    const int64_t whole = (count - 1) / length;
    CHECK(sampler.windows() == (batches == 0 ? whole : std::min(whole, batches * global)));
    CHECK(sampler.target_count() == sampler.windows() * length);
    std::vector<int> visits(static_cast<size_t>(whole), 0);
    for (int64_t round = 0; round < sampler.rounds(ranks); ++round)
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const EvalRows part = sampler.rows_of(round, rank, ranks);
        CHECK((part.valid_rows >= 0 && part.valid_rows <= rows));
        for (int64_t row = 0; row < part.valid_rows; ++row) {
          const int64_t begin = sampler.begin_of(part.begin + row);
          CHECK(begin + length + 1 <= count);
          ++visits[static_cast<size_t>(begin / length)];
        }
      }
    for (int64_t window = 0; window < whole; ++window)
      CHECK(visits[static_cast<size_t>(window)] == (window < sampler.windows() ? 1 : 0));
  }
}

// SPDX-License-Identifier: Apache-2.0
// Laws of mixtures: shares are exact after any number of samples, and no sample of an epoch comes twice.

#include "engine/data/datasets/mixture.h"

#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "engine/data/datasets/dataset.h"
#include "engine/data/datasets/loader.h"
#include "engine/data/datasets/windows.h"
#include "tests/engine/data/disk.h"
#include "tests/sample.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::data;
using namespace slipstream::tests;

TEST_CASE("mixture: every source has its share of every number of samples", "[data]") {
  const uint64_t seed = 11;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  std::vector<std::vector<double>> tables = {
      {1},         {1, 1, 1},           {0.7, 0.2, 0.1}, {0, 3, 0, 1}, {999, 1}, {0.333333, 0.333333, 0.333334},
      {1e6, 1, 1}, {0.5, 0.5, 0.000001}};
  for (int i = 0; i < (test_everything() ? 1000 : 30); ++i) {
    std::vector<double> weights(1 + random() % 12);
    for (double& weight : weights) weight = static_cast<double>(random() % 40) / 10;
    weights[0] += 0.1;
    tables.push_back(weights);
  }
  for (const std::vector<double>& weights : tables) {
    const Mixture mixture(weights);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<uint64_t> counts(weights.size());
    bool in_order = true;
    double worst = 0;
    const uint64_t samples = std::min<uint64_t>(2 * static_cast<uint64_t>(mixture.period()) + 7, 300'000);
    for (uint64_t sample = 0; sample < samples; ++sample) {
      const Mixture::Place place = mixture.place_of(sample);
      in_order &= place.index == counts.at(static_cast<size_t>(place.source));
      ++counts[static_cast<size_t>(place.source)];
      for (size_t s = 0; s < weights.size(); ++s)
        worst = std::max(worst,
                         std::abs(static_cast<double>(counts[s]) - weights[s] / sum * static_cast<double>(sample + 1)));
    }
    INFO("period " << mixture.period() << ", " << weights.size() << " sources, first " << weights[0]);
    CHECK(in_order);
    CHECK(worst < 1 + 1e-9);
  }
  // Far away, the shares follow by arithmetic: a whole number of periods, and one more sample.
  const Mixture mixture(std::vector<double>{0.7, 0.2, 0.1});
  CHECK(mixture.period() == 10);
  std::map<int64_t, uint64_t> indices;
  for (uint64_t sample = 10'000'000'000; sample < 10'000'000'010; ++sample) {
    const Mixture::Place place = mixture.place_of(sample);
    indices[place.source] = std::max(indices[place.source], place.index);
  }
  CHECK(indices == std::map<int64_t, uint64_t>{{0, 7'000'000'006}, {1, 2'000'000'001}, {2, 1'000'000'000}});
}

TEST_CASE("mixture: wrong weights are refused", "[data]") {
  const auto make = [](std::vector<double> weights) { Mixture{weights}; };
  CHECK_REFUSED(ConfigError, make({1, -0.5}), "data.weights[1] = -0.5", "need 0 to 1000000");
  CHECK_REFUSED(ConfigError, make({0, 0}), "all 2 are 0");
  CHECK_REFUSED(ConfigError, make({1, std::nan("")}), "data.weights[1] = nan");
  CHECK_REFUSED(ConfigError, make({0.1234567, 1}), "more than 6 digits");
  CHECK_REFUSED(ConfigError, make({0.999999, 0.123457}), "add up to 1123456, need at most 1048576");
}

TEST_CASE("mixture: an epoch of a source has each of its windows once, whatever the layout", "[data]") {
  const std::vector<int64_t> counts{103, 57, 211};
  const std::vector<double> weights{3, 1, 2};
  const SamplerOptions options{.sequence_length = 8, .micro_batch_size = 2, .global_batch_size = 8, .seed = 3};
  const TrainSampler sampler(counts, Mixture(weights), options);
  const Mixture mixture(weights);
  const std::vector<int64_t> begins{0, 103, 160};
  std::vector<std::vector<int64_t>> windows(3);  // of each source, in the order of its samples
  for (uint64_t sample = 0; sample < 600; ++sample) {
    const auto source = static_cast<size_t>(mixture.place_of(sample).source);
    const int64_t begin = sampler.begin_of(sample) - begins[source];
    CHECK((begin >= 0 && begin + 9 <= counts[source]));
    windows[source].push_back(begin);
  }
  for (size_t source = 0; source < 3; ++source) {
    const size_t epoch = static_cast<size_t>(counts[source] / 8 - 1);
    for (size_t first = 0; first + epoch <= windows[source].size(); first += epoch) {
      std::set<int64_t> seen(windows[source].begin() + static_cast<std::ptrdiff_t>(first),
                             windows[source].begin() + static_cast<std::ptrdiff_t>(first + epoch));
      CHECK(seen.size() == epoch);
      std::set<int64_t> places;
      for (const int64_t begin : seen) places.insert((begin - *seen.begin()) % 8);
      CHECK(places == std::set<int64_t>{0});
    }
  }
  // One source alone gives the samples that it gave without mixtures.
  const TrainSampler alone(103, options), one(std::vector<int64_t>{103}, {}, options);
  for (uint64_t sample = 0; sample < 100; ++sample) CHECK(alone.begin_of(sample) == one.begin_of(sample));
}

TEST_CASE("mixture: a step has the same rows on every layout and after every restart", "[data]") {
  const TempFolder folder;
  for (const char* name : {"a", "b", "c"}) put(folder / (std::string(name) + ".txt"), std::string(400, name[0]));
  const Dataset data = open_dataset({.train = "",
                                     .sources = {folder / "a.txt", folder / "b.txt", folder / "c.txt"},
                                     .weights = {5, 2, 1},
                                     .sequence_length = 8});
  CHECK(data.counts == std::vector<int64_t>{360, 360, 360});
  CHECK(data.validation->count() == 120);
  const auto rows_of = [&](int64_t first, int64_t data_ranks, int64_t micro_batch) {
    const TrainSampler sampler(
        data.counts, data.mixture,
        {.sequence_length = 8, .micro_batch_size = micro_batch, .global_batch_size = 16, .seed = 1});
    std::map<int64_t, std::vector<int32_t>> rows;  // by step
    for (int64_t rank = 0; rank < data_ranks; ++rank) {
      const BatchFiller fill = training_filler(data.train, sampler, rank, data_ranks);
      Batch batch =
          make_batch({.micro_batches = sampler.micro_batches(data_ranks), .rows = micro_batch, .sequence_length = 8});
      for (int64_t step = first; step <= 9; ++step) {
        fill(step, batch);
        rows[step].insert(rows[step].end(), batch.inputs.begin(), batch.inputs.end());
      }
    }
    return rows;
  };
  const auto all = rows_of(1, 1, 16);
  CHECK(rows_of(1, 2, 4) == all);
  CHECK(rows_of(1, 8, 1) == all);
  auto later = all;
  later.erase(later.begin(), later.find(5));
  CHECK(rows_of(5, 4, 2) == later);
  for (const auto& [step, rows] : all) {
    CHECK(std::count(rows.begin(), rows.end(), 'a') == 10 * 8);
    CHECK(std::count(rows.begin(), rows.end(), 'c') == 2 * 8);
  }
  CHECK_REFUSED(DataError, open_dataset({.train = "", .sources = {folder / "a.txt", folder / "none.txt"}}), "none.txt");
  CHECK_REFUSED(DataError, open_dataset({.train = "", .sources = {folder / "a.txt", ""}}), "a path that is empty");
}

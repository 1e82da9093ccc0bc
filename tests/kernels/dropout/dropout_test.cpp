// SPDX-License-Identifier: Apache-2.0
// Dropout against double, the statistics of its masks, and their independence of the division of rows.

#include "kernels/dropout/dropout.h"

#include <bit>

#include "engine/base/check.h"
#include "engine/base/philox.h"
#include "tests/kernels/common/backend.h"
#include "tests/reference/dropout.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

struct Case {
  int64_t sequences = 2, width = 8, first_row = 0, rows = 0;
  ContextChunks chunks = {.tokens = 6};
  double rate = 0.25;
  DType dtype = DType::f32;
  uint64_t key = dropout_key(7, "a");
  uint32_t step = 3, first_sequence = 5;

  /// Pairs of a DropoutSample.
  std::vector<int32_t> samples() const {
    std::vector<int32_t> all;
    for (int64_t s = 0; s < sequences; ++s)
      all.insert(all.end(), {static_cast<int32_t>(step), static_cast<int32_t>(first_sequence + s)});
    return all;
  }
  reference::Place place(int64_t row, int64_t feature) const {
    const int64_t at = first_row + row, tokens = chunks.local_tokens();
    return {key, step, first_sequence + static_cast<uint32_t>(at / tokens),
            static_cast<uint32_t>(chunks.position(at % tokens)), static_cast<uint32_t>(feature)};
  }
};

Dropout arguments(const Case& c, const void* x, const void* d, void* y, const OnDevice& samples) {
  return {.x = x,
          .d = d,
          .y = y,
          .samples = samples.data<DropoutSample>(),
          .rows = c.rows,
          .width = c.width,
          .first_row = c.first_row,
          .chunks = c.chunks,
          .key = c.key,
          .rate = c.rate,
          .dtype = c.dtype};
}

/// The mask of a case: 1 where an element is kept.
std::vector<int> mask_of(const Case& c) {
  LaunchContext context = a_context();
  const OnDevice values(Doubles(static_cast<size_t>(c.rows * c.width), 1.0), DType::f32, "values"),
      samples(c.samples(), "samples");
  dropout(context, arguments(c, nullptr, values.data(), values.data(), samples));
  std::vector<int> mask;
  for (double value : values.doubles()) {
    REQUIRE((value == 0.0 || value == static_cast<double>(dropout_scale(c.rate))));
    mask.push_back(value > 0 ? 1 : 0);
  }
  return mask;
}

double mean(const std::vector<int>& mask) {
  int64_t kept = 0;
  for (int m : mask) kept += m;
  return static_cast<double>(kept) / static_cast<double>(mask.size());
}

/// Correlation of a[i] and b[i + lag], in standard deviations of independent masks.
double correlation(const std::vector<int>& a, const std::vector<int>& b, double rate, size_t lag = 0) {
  const size_t n = a.size() - lag;
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += (a[i] - (1 - rate)) * (b[i + lag] - (1 - rate));
  return sum / (rate * (1 - rate)) / std::sqrt(static_cast<double>(n));
}

}  // namespace

TEST_CASE("dropout: both Philox give the known answers of Random123", "[.][cpu]") {
  const struct {
    std::array<uint32_t, 4> counter;
    std::array<uint32_t, 2> key;
    std::array<uint32_t, 4> words;
  } known[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const auto& k : known) {
    CHECK(reference::philox(k.counter, k.key) == k.words);
    CHECK(philox4x32(k.counter, k.key) == k.words);
  }
}

TEST_CASE("dropout: every element is the rounded sum of double, in place or not") {
  INFO("seeds 1 and 2");
  std::vector<Case> cases;
  if (on_cpu()) {
    for (int64_t width : {1, 3, 4, 17, 40, 128, 129, 300}) cases.push_back({.width = width, .rows = 12});
  } else {
    const ContextChunks whole{.tokens = 6}, odd{.tokens = 5}, shared{.tokens = 24, .ranks = 4, .rank = 2};
    for (int64_t width : {1, 3, 4, 7, 8, 9, 40, 260})
      for (const ContextChunks& chunks : {whole, odd, shared})
        cases.push_back({.width = width, .first_row = 2, .rows = 2 * chunks.local_tokens() - 2, .chunks = chunks});
  }
  cases.push_back({.width = 24, .first_row = 4, .rows = 5});
  cases.push_back({.width = 24, .rows = 12, .chunks = {.tokens = 24, .ranks = 4, .rank = 1}});
  cases.push_back({.width = 24, .rows = 12, .rate = 0});
  cases.push_back({.width = 24, .rows = 12, .rate = 0.9});
  cases.push_back({.width = 24, .rows = 10, .chunks = {.tokens = 5}});  // an odd number of tokens
  for (Case c : cases)
    for (DType dtype : {DType::f32, DType::bf16})
      for (int64_t shift : {0, 1}) {
        if (on_cpu() && shift > 0) continue;
        CAPTURE(c.width, c.chunks.tokens, c.rate, name_of(dtype), shift);
        c.dtype = dtype;
        const int64_t elems = c.rows * c.width;
        const int bits = dtype == DType::f32 ? reference::kFloatBits : reference::kBfloat16Bits;
        const Doubles x = random_doubles(elems, dtype, 1), d = random_doubles(elems, dtype, 2);
        Doubles sum, alone;
        for (int64_t i = 0; i < elems; ++i) {
          const auto at = static_cast<size_t>(i);
          const reference::Place place = c.place(i / c.width, i % c.width);
          sum.push_back(reference::dropout(place, c.rate, x[at], d[at], bits));
          alone.push_back(reference::dropout(place, c.rate, 0, d[at], bits));
        }
        const OnDevice samples(c.samples(), "samples");
        for_machines([&](LaunchContext& context) {
          OnDevice left(x, dtype, "x", shift), right(d, dtype, "d", shift), other(elems, dtype, "y", shift);
          for (const OnDevice* to : {&other, &left, &right}) {
            left.set(x);
            dropout(context, arguments(c, left.data(), right.data(), to->data(), samples));
            CHECK(to->doubles() == sum);
          }
          right.set(d);
          dropout(context, arguments(c, nullptr, right.data(), right.data(), samples));
          CHECK(right.doubles() == alone);
          CHECK((left.intact() && right.intact() && other.intact() && samples.intact()));
        });
      }
}

TEST_CASE("dropout: the backward is the transposed forward") {
  // y is linear in d: differences of any size are exact up to rounding.
  Case c{.width = 10, .rows = 12};
  const Doubles d = random_doubles(120, DType::f32, 3), weight = random_doubles(120, DType::f32, 4);
  const auto of = [&](const Doubles& in) {
    Doubles out;
    for (int64_t i = 0; i < 120; ++i)
      out.push_back(reference::is_kept(c.place(i / 10, i % 10), c.rate) ? in[static_cast<size_t>(i)] / (1 - c.rate)
                                                                        : 0);
    return out;
  };
  const Doubles slopes = central_differences([&](const Doubles& in) { return dot(weight, of(in)); }, d);
  LaunchContext context = a_context();
  const OnDevice dy(weight, DType::f32, "dy"), dd(120, DType::f32, "dd"), samples(c.samples(), "samples");
  dropout(context, arguments(c, nullptr, dy.data(), dd.data(), samples));
  CHECK(error_of(dd.doubles(), slopes) < gradient_tolerance(DType::f32, 1));
}

TEST_CASE("dropout: masks have their rate, and are independent of each other", "[.][cpu]") {
  for (double rate : {0.1, 0.5, 0.9}) {
    const Case base{.sequences = 4, .width = 256, .rows = 256, .chunks = {.tokens = 64}, .rate = rate};
    const std::vector<int> mask = mask_of(base);
    const auto n = static_cast<double>(mask.size());
    CAPTURE(rate, mean(mask));
    CHECK(std::abs(mean(mask) - (1 - rate)) < 5 * std::sqrt(rate * (1 - rate) / n));
    const auto apart = [&](const char* what, auto change) {
      Case other = base;
      change(other);
      CAPTURE(what);
      const std::vector<int> another = mask_of(other);
      CHECK(another != mask);
      CHECK(std::abs(correlation(mask, another, rate)) < 5);
    };
    apart("place", [](Case& c) { c.key = dropout_key(7, "b"); });
    apart("seed", [](Case& c) { c.key = dropout_key(8, "a"); });
    apart("step", [](Case& c) { ++c.step; });
    apart("sequences", [](Case& c) { c.first_sequence += 4; });
    apart("positions", [](Case& c) { c.chunks = {.tokens = 128, .ranks = 2, .rank = 1}; });
    for (size_t lag : {1, 2, 3, 4, 5, 255, 256, 257, 64 * 256}) {  // features, positions, sequences
      CAPTURE(lag);
      CHECK(std::abs(correlation(mask, mask, rate, lag)) < 5);
    }
  }
}

TEST_CASE("dropout: a mask that forgets the step or the sequence is seen", "[.][cpu]") {
  const Case base{.sequences = 2, .width = 64, .rows = 12};
  const std::vector<int> mask = mask_of(base);
  CHECK(mask_of(base) == mask);
  // One unit of correlation per element, as the test above would find.
  CHECK(correlation(mask, mask, base.rate) > 20);
}

TEST_CASE("dropout: parts of rows and ranks of a sequence have the masks of the whole", "[.][cpu]") {
  const Case whole{.sequences = 3, .width = 20, .rows = 36, .chunks = {.tokens = 12}};
  const std::vector<int> mask = mask_of(whole);
  for (int64_t first : {0, 5, 12, 17}) {
    Case part = whole;
    part.first_row = first;
    part.rows = 19;
    const std::vector<int> seen = mask_of(part);
    CHECK(std::equal(seen.begin(), seen.end(), mask.begin() + first * 20));
  }
  for (int ranks : {2, 3})
    for (int rank = 0; rank < ranks; ++rank) {
      Case part = whole;
      part.chunks = {.tokens = 12, .ranks = ranks, .rank = rank};
      part.rows = 36 / ranks;
      const std::vector<int> seen = mask_of(part);
      const int64_t tokens = part.chunks.local_tokens();
      bool same = true;
      for (int64_t i = 0; i < part.rows * 20; ++i) {
        const int64_t row = i / 20, at = row / tokens * 12 + part.chunks.position(row % tokens);
        same = same && seen[static_cast<size_t>(i)] == mask[static_cast<size_t>(at * 20 + i % 20)];
      }
      CAPTURE(ranks, rank);
      CHECK(same);
    }
}

TEST_CASE("dropout: impossible operands are refused, the cost equals the formula in the header", "[.][cpu]") {
  LaunchContext context = a_context();
  const Case c{.width = 5, .rows = 2};
  const OnDevice samples(c.samples(), "samples");
  CHECK_THROWS_WITH(dropout(context, arguments(c, nullptr, nullptr, nullptr, samples)),
                    "[dropout] operand 0 is null. Pass every operand that is not optional in the op's header.");
  Case all = c;
  all.rate = 1;
  CHECK_THROWS_WITH(dropout(context, arguments(all, nullptr, nullptr, nullptr, samples)),
                    "[dropout] rate is 1, need a number from 0 to below 1.");
  Dropout shape{.rows = 2, .width = 5, .dtype = DType::bf16};
  CHECK(dropout_cost(shape, true).bytes == 60);
  CHECK(dropout_cost(shape, false).bytes == 40);
  CHECK(dropout_cost(shape, true).flops == 20);
}

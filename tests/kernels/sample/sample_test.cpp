// SPDX-License-Identifier: Apache-2.0
// The choice of tokens, by probabilities that a hand can compute.

#include "kernels/sample/sample.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/base/check.h"
#include "engine/base/philox.h"
#include "kernels/sample/sample_rule.h"
#include "tests/kernels/common/backend.h"
#include "tests/reference/sample.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

using Choose = int32_t (*)(const Sample&, int64_t, uint64_t);

/// Logits of tokens with probabilities 4/10, 3/10, 2/10 and 1/10, in another order.
const std::vector<float> kLogits = {std::log(2.0f), std::log(4.0f), std::log(1.0f), std::log(3.0f)};

/// The choice by a random number in [0, 1), which is the same with every instruction set.
int32_t draw(const std::vector<float>& logits, const SamplingOptions& options, const std::vector<int32_t>& before,
             double uniform, const std::vector<int32_t>& holes = {}) {
  const int64_t vocab = std::ssize(logits);
  std::vector<uint32_t> seen = reference::token_set(vocab, before), no = reference::token_set(vocab, holes);
  const int32_t sequence = 0;
  std::vector<int32_t> chosen;
  for (const auto& [isa, choose] :
       std::initializer_list<std::pair<Isa, Choose>>{{Isa::baseline, isa_baseline::choose_cpu},
                                                     {Isa::avx2, isa_avx2::choose_cpu},
                                                     {Isa::avx512, isa_avx512::choose_cpu}}) {
    if (isa > kernels::isa()) continue;
    std::vector<float> some = logits;
    chosen.push_back(choose({.logits = some.data(),
                             .rows = 1,
                             .vocab = vocab,
                             .stride = vocab,
                             .options = options,
                             .holes = holes.empty() ? nullptr : no.data(),
                             .seen = seen.data(),
                             .sequences = &sequence},
                            0, static_cast<uint64_t>(std::ldexp(uniform, 64))));
  }
  REQUIRE(std::count(chosen.begin(), chosen.end(), chosen[0]) == std::ssize(chosen));
  return chosen[0];
}

/// The share of each token among evenly spaced random numbers.
std::map<int32_t, double> shares(const SamplingOptions& options, const std::vector<int32_t>& before = {}) {
  constexpr int kDraws = 10000;
  std::map<int32_t, double> counts;
  for (int i = 0; i < kDraws; ++i) counts[draw(kLogits, options, before, (i + 0.5) / kDraws)] += 1.0 / kDraws;
  return counts;
}

void check_shares(const SamplingOptions& options, const std::map<int32_t, double>& expected,
                  const std::vector<int32_t>& before = {}) {
  const std::map<int32_t, double> seen = shares(options, before);
  REQUIRE(seen.size() == expected.size());
  for (const auto& [id, share] : expected) {
    INFO("token " << id);
    REQUIRE(seen.count(id) == 1);
    CHECK(seen.at(id) == Approx(share).margin(2e-4));
  }
}

}  // namespace

TEST_CASE("sampling: tokens come with their probabilities, among those that the options leave", "[.][cpu]") {
  check_shares({.temperature = 1}, {{0, 0.2}, {1, 0.4}, {2, 0.1}, {3, 0.3}});
  check_shares({.temperature = 0}, {{1, 1}});
  check_shares({.temperature = 1e-300}, {{1, 1}});
  // Half the temperature squares the weights 2, 4, 1, 3.
  check_shares({.temperature = 0.5}, {{0, 4 / 30.0}, {1, 16 / 30.0}, {2, 1 / 30.0}, {3, 9 / 30.0}});
  check_shares({.temperature = 1, .top_k = 2}, {{1, 4 / 7.0}, {3, 3 / 7.0}});
  check_shares({.temperature = 1, .top_k = 9}, {{0, 0.2}, {1, 0.4}, {2, 0.1}, {3, 0.3}});
  check_shares({.temperature = 1, .top_p = 0.69}, {{1, 4 / 7.0}, {3, 3 / 7.0}});
  check_shares({.temperature = 1, .top_p = 0.71}, {{0, 2 / 9.0}, {1, 4 / 9.0}, {3, 3 / 9.0}});
  check_shares({.temperature = 1, .top_p = 0.1}, {{1, 1}});
  // 7 of 10 become 1, so that 0.5 is reached by the first.
  check_shares({.temperature = 1, .top_k = 2, .top_p = 0.5}, {{1, 1}});
  check_shares({.temperature = 1, .min_p = 0.6}, {{1, 4 / 7.0}, {3, 3 / 7.0}});
  check_shares({.temperature = 1, .min_p = 0.2}, {{0, 0.2}, {1, 0.4}, {2, 0.1}, {3, 0.3}});
}

TEST_CASE("sampling: the penalty divides positive logits once and multiplies negative ones", "[.][cpu]") {
  const std::vector<float> logits = {2, 3, -1, -1.5};
  const SamplingOptions greedy{.temperature = 0, .repetition_penalty = 2};
  CHECK(draw(logits, greedy, {}, 0) == 1);
  CHECK(draw(logits, greedy, std::vector<int32_t>{1, 1, 1}, 0) == 0);  // 2, 1.5, -1, -1.5
  const std::vector<float> low = {-1, -1.5f};
  CHECK(draw(low, greedy, std::vector<int32_t>{0}, 0) == 1);  // -2, -1.5
  check_shares({.temperature = 1, .repetition_penalty = 2}, {{0, 2 / 8.0}, {1, 2 / 8.0}, {2, 1 / 8.0}, {3, 3 / 8.0}},
               {1});
}

TEST_CASE("sampling: the weight of an exponent is its power of two", "[.][cpu]") {
  CHECK(weight_of(0) == uint64_t{1} << kWeightBits);
  CHECK(weight_of(kNoWeight) == 0);
  CHECK(exponent_of(INFINITY, 1.0f) == kNoWeight);
  uint64_t before = weight_of(0);
  double worst = 0;
  bool falls = true;
  for (uint32_t exponent = 0; exponent < kNoWeight; exponent += 9973) {
    const uint64_t weight = weight_of(exponent);
    const double exact = std::exp2(kWeightBits - static_cast<double>(exponent) / kHalving);
    // The last bit of a small weight is more than 2^-29 of it.
    worst = std::max(worst, (std::abs(static_cast<double>(weight) - exact) - 1) / exact);
    falls = falls && weight <= before;
    before = weight;
  }
  CHECK(worst < 0x1p-29);
  CHECK(falls);
  for (const uint64_t a :
       {uint64_t{0}, uint64_t{1}, uint64_t{0xffffffff}, uint64_t{1} << 32, ~uint64_t{0}, uint64_t{0x123456789abcdef}})
    for (const uint64_t b : {uint64_t{0}, uint64_t{3}, uint64_t{0xffffffff}, uint64_t{1} << 63, ~uint64_t{0}}) {
      __extension__ using Product = unsigned __int128;
      CHECK(high_product(a, b) == static_cast<uint64_t>(static_cast<Product>(a) * b >> 64));
    }
}

TEST_CASE("sampling: equal tokens stay or go together with top-k, and the first ones stay with top-p", "[.][cpu]") {
  const std::vector<float> equal(40, 1.5f);
  const auto last_of = [&](const SamplingOptions& options) { return draw(equal, options, {}, 1 - 0x1p-53); };
  CHECK(last_of({.temperature = 1}) == 39);
  CHECK(last_of({.temperature = 1, .top_k = 3}) == 39);  // all of them are the third likeliest
  CHECK(last_of({.temperature = 1, .top_p = 0.5}) == 19);
  CHECK(last_of({.temperature = 1, .top_p = 0.51}) == 20);
  CHECK(last_of({.temperature = 1, .top_p = 1e-300}) == 0);
  CHECK(last_of({.temperature = 1, .min_p = 1}) == 39);
  CHECK(last_of({.temperature = 0}) == 0);
}

TEST_CASE("sampling: holes are never chosen, and logits that are not finite are reported", "[.][cpu]") {
  std::vector<float> logits(70, 0.0f);
  logits[33] = 9, logits[65] = 8;
  CHECK(draw(logits, {.temperature = 0}, {}, 0) == 33);
  CHECK(draw(logits, {.temperature = 0}, {}, 0, {33}) == 65);
  std::vector<int32_t> all_but_one;
  for (int32_t i = 0; i < 70; ++i)
    if (i != 50) all_but_one.push_back(i);
  for (const double u : {0.0, 0.5, 1 - 0x1p-53}) {
    CHECK(draw(logits, {.temperature = 10}, {}, u, all_but_one) == 50);
    CHECK(draw(logits, {.temperature = 10, .top_k = 5, .top_p = 0.9}, {}, u, all_but_one) == 50);
  }
  for (const float bad : {INFINITY, -INFINITY, NAN})
    for (const size_t at : {size_t{0}, size_t{17}, size_t{69}}) {
      std::vector<float> some = logits;
      some[at] = bad;
      CHECK(draw(some, {.temperature = 0}, {}, 0) == kNotFinite);
      CHECK(draw(some, {.temperature = 1, .top_p = 0.5}, {}, 0) == kNotFinite);
    }
  // Penalties of large logits stay finite.
  CHECK(draw({-3e38f, -3.1e38f}, {.temperature = 0, .repetition_penalty = 100}, {0}, 0) == 1);
}

TEST_CASE("sampling: a large vocabulary is drawn from as by adding all probabilities in order", "[.][cpu]") {
  constexpr size_t kTokens = 5003;
  const uint64_t seed = 11;
  CAPTURE(seed);
  const Philox random(seed, "sampling");
  std::vector<float> logits(kTokens);
  for (size_t i = 0; i < kTokens; ++i) logits[i] = 3 * random.normal(i);
  for (size_t i = 0; i < kTokens; i += 7) logits[i] = logits[0];  // equal ones: the first are kept
  const std::pair<double, int> kChoices[] = {{0.05, 0}, {0.6, 0},   {0.999, 0},  {1.0, 0},     {1.0, 1},
                                             {1.0, 40}, {1.0, 900}, {1.0, 5000}, {1.0, 10000}, {0.6, 900}};
  for (const auto& [top_p, top_k] : kChoices) {
    const Doubles weights = reference::token_weights(logits, {.temperature = 0.7, .top_k = top_k, .top_p = top_p});
    double kept = 0, before = 0;
    for (const double weight : weights) kept += weight;
    size_t different = 0;
    for (size_t i = 0; i < kTokens; ++i) {
      // The middle of the token's share; the smallest are below the rounding of the others' sum.
      const double middle = (before + weights[i] / 2) / kept;
      before += weights[i];
      if (weights[i] < 1e-6 * kept) continue;
      const int32_t id = draw(logits, {.temperature = 0.7, .top_k = top_k, .top_p = top_p}, {}, middle);
      different += id != static_cast<int32_t>(i);
    }
    CAPTURE(top_p, top_k);
    CHECK(different == 0);
    CHECK(kept > 0);
  }
}

TEST_CASE("sampling: frequencies of tokens are their probabilities, and draws are independent", "[.][cpu]") {
  const uint64_t seed = 20261127;
  CAPTURE(seed);
  const Philox random(seed, "statistics");
  std::vector<float> logits(60);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = 2 * random.normal(i);
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = 1}, SamplingOptions{.temperature = 0.6},
        SamplingOptions{.temperature = 1.5, .top_k = 12}, SamplingOptions{.temperature = 1, .top_p = 0.8},
        SamplingOptions{.temperature = 2, .min_p = 0.2},
        SamplingOptions{.temperature = 1.2, .top_k = 30, .top_p = 0.9, .min_p = 0.01, .repetition_penalty = 1.3}}) {
    CAPTURE(options.temperature, options.top_k, options.top_p, options.min_p);
    constexpr int64_t kTexts = 40, kDraws = 500;
    const int64_t vocab = std::ssize(logits);
    const std::vector<int32_t> before{3, 17, 44};
    std::vector<TextState> texts(kTexts);
    std::vector<int32_t> sequences(kTexts), chosen(kTexts);
    std::vector<uint32_t> seen;
    for (size_t t = 0; t < texts.size(); ++t)
      texts[t].text = static_cast<uint32_t>(t), sequences[t] = static_cast<int32_t>(t);
    ThreadPool pool(2);
    LaunchContext context;
    context.pool = &pool;
    Doubles counts(logits.size());
    std::vector<Doubles> pairs(2, Doubles(2));  // of neighbours in a text: is each of the likelier half?
    Doubles weights = reference::token_weights(logits, options, before);
    double total = 0, likely = 0;
    for (const double weight : weights) total += weight;
    const auto is_likely = [&](int32_t id) { return weights[static_cast<size_t>(id)] > total / 12; };
    for (size_t i = 0; i < weights.size(); ++i)
      if (is_likely(static_cast<int32_t>(i))) likely += weights[i] / total;
    std::vector<int32_t> last;
    for (int64_t d = 0; d < kDraws; ++d) {
      std::vector<float> rows;
      seen.clear();
      for (int64_t t = 0; t < kTexts; ++t) {
        rows.insert(rows.end(), logits.begin(), logits.end());
        const auto set = reference::token_set(vocab, before);  // without the tokens drawn: the same in each draw
        seen.insert(seen.end(), set.begin(), set.end());
      }
      sample(context, {.logits = rows.data(),
                       .rows = kTexts,
                       .vocab = vocab,
                       .stride = vocab,
                       .options = options,
                       .key = random.key(),
                       .seen = seen.data(),
                       .sequences = sequences.data(),
                       .text = texts.data(),
                       .chosen = chosen.data()});
      for (const int32_t id : chosen) ++counts[static_cast<size_t>(id)];
      for (size_t t = 0; d > 0 && t < texts.size(); ++t) ++pairs[is_likely(last[t])][is_likely(chosen[t])];
      last = chosen;
    }
    CHECK(reference::chi_square_is_plausible(counts, weights));
    CHECK(reference::chi_square_is_plausible(
        {pairs[0][0], pairs[0][1], pairs[1][0], pairs[1][1]},
        {(1 - likely) * (1 - likely), (1 - likely) * likely, likely * (1 - likely), likely * likely}));
    CHECK((texts[7].draws == kDraws && texts[7].token == kDraws && texts[7].id == chosen[7]));
  }
}

TEST_CASE("sampling: impossible operands are refused", "[.][cpu]") {
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  float logit = 0;
  int32_t sequence = 0, chosen = 0;
  TextState text;
  const Sample good{
      .logits = &logit, .rows = 1, .vocab = 1, .stride = 1, .sequences = &sequence, .text = &text, .chosen = &chosen};
  sample(context, good);
  const auto refused = [&](const auto& change, const std::string& why) {
    Sample args = good;
    change(args);
    CHECK_THROWS_WITH(sample(context, args), why);
  };
  refused([](Sample& a) { a.options.temperature = -1; }, "[sample] temperature is -1, need 0 to 1e6.");
  refused([](Sample& a) { a.options.temperature = NAN; }, "[sample] temperature is nan, need 0 to 1e6.");
  refused([](Sample& a) { a.options.top_k = -1; }, "[sample] top_k is -1, need at least 0.");
  refused([](Sample& a) { a.options.top_p = 0; }, "[sample] top_p is 0, need more than 0 and at most 1.");
  refused([](Sample& a) { a.options.min_p = 1.5; }, "[sample] min_p is 1.5, need 0 to 1.");
  refused([](Sample& a) { a.options.repetition_penalty = 2; },
          "[sample] a repetition_penalty of 2 needs the tokens of each text in seen.");
  refused([](Sample& a) { a.stride = 0; }, "[sample] stride is 0, need at least 1.");
  refused([](Sample& a) { a.vocab = a.stride = (1 << 23) + 1; }, "[sample] vocab is 8388609, need at most 8388608.");
}

namespace {

struct Case {
  int64_t vocab = 0;
  SamplingOptions options;
  double spread = 3;
  double grain = 0;  // logits are multiples of this, so that many are equal; 0: any
  std::vector<int32_t> holes = {};
  int64_t rows = 2, beyond = 0;  // elements of a row after its vocabulary
};

/// Several draws of each of a few texts, whose sets of seen tokens grow.
void check_same(const Case& c) {
  const uint64_t seed = 77;
  CAPTURE(c.vocab, c.options.temperature, c.options.top_k, c.options.top_p, c.options.min_p,
          c.options.repetition_penalty, c.grain, c.holes.size(), c.rows, seed);
  const int draws = c.vocab > 1000 ? 1 : 2;
  const int64_t stride = c.vocab + c.beyond, words = token_set_words(c.vocab), texts = 2 * c.rows;
  const Philox random(seed + static_cast<uint64_t>(c.vocab), "emulated sampling");
  const bool penalises = c.options.repetition_penalty != 1;
  ThreadPool pool(1);
  LaunchContext host;
  host.pool = &pool;
  for_machines([&](LaunchContext& context) {
    std::vector<TextState> states(static_cast<size_t>(texts));
    std::vector<int32_t> sequences(static_cast<size_t>(c.rows)), chosen(sequences.size(), -9);
    std::vector<uint32_t> seen(penalises ? static_cast<size_t>(texts * words) : 0);
    for (size_t t = 0; t < states.size(); ++t)
      states[t] = {.id = 0, .token = 5, .draws = static_cast<uint32_t>(3 * t), .text = static_cast<uint32_t>(t + 1)};
    // Not in order: rows are of any texts.
    for (size_t r = 0; r < sequences.size(); ++r)
      sequences[r] = static_cast<int32_t>(2 * (sequences.size() - 1 - r) + r % 2);
    for (size_t i = 0; i < seen.size(); ++i)
      seen[i] = 0x55555555u << i % 20 & (c.vocab < 32 ? (1u << c.vocab) - 1 : ~0u);
    std::vector<uint32_t> no = reference::token_set(c.vocab, c.holes);
    const Held<int32_t> of_sequences(sequences, "sequences"), of_chosen(chosen, "chosen");
    const Held<TextState> of_states(states, "states");
    const Held<uint32_t> of_seen(seen, "seen"), of_holes(no, "holes");
    for (int d = 0; d < draws; ++d) {
      std::vector<float> logits(static_cast<size_t>(c.rows * stride), NAN);  // the rest of a row may have any bits
      for (int64_t r = 0; r < c.rows; ++r)
        for (int64_t i = 0; i < c.vocab; ++i) {
          double logit =
              c.spread * static_cast<double>(random.normal(static_cast<uint64_t>((d * c.rows + r) * c.vocab + i)));
          if (c.grain > 0) logit = std::round(logit / c.grain) * c.grain;
          logits[static_cast<size_t>(r * stride + i)] = static_cast<float>(logit);
        }
      const Held<float> of_logits(logits, "logits");
      Sample args{.logits = logits.data(),
                  .rows = c.rows,
                  .vocab = c.vocab,
                  .stride = stride,
                  .options = c.options,
                  .key = random.key(),
                  .holes = c.holes.empty() ? nullptr : no.data(),
                  .seen = penalises ? seen.data() : nullptr,
                  .sequences = sequences.data(),
                  .text = states.data(),
                  .chosen = chosen.data()};
      sample(host, args);
      args.logits = of_logits.data(), args.sequences = of_sequences.data(), args.text = of_states.data();
      args.chosen = of_chosen.data();
      args.holes = c.holes.empty() ? nullptr : of_holes.data(), args.seen = penalises ? of_seen.data() : nullptr;
      sample(context, args);
      CHECK(of_chosen.values() == chosen);
      CHECK((of_logits.intact() && of_chosen.intact() && of_states.intact() && of_seen.intact()));
    }
    CHECK(of_seen.values() == seen);
    const std::vector<TextState> after = of_states.values();
    for (size_t t = 0; t < states.size(); ++t)
      CHECK((after[t].id == states[t].id && after[t].token == states[t].token && after[t].draws == states[t].draws &&
             after[t].text == states[t].text));
  });
}

const SamplingOptions kOptions[] = {
    {.temperature = 0},
    {.temperature = 1},
    {.temperature = 0.8, .top_k = 5},
    {.temperature = 1, .top_p = 0.7},
    {.temperature = 1.3, .min_p = 0.05},
    {.temperature = 0.9, .top_k = 40, .top_p = 0.9, .min_p = 0.01, .repetition_penalty = 1.2}};

}  // namespace

TEST_CASE("sampling: a GPU chooses the CPU's tokens, around the sizes of a warp and of a block", "[cuda]") {
  for (int64_t vocab : {1, 2, 31, 32, 33, 511, 512, 513})
    for (const SamplingOptions& options : kOptions) check_same({.vocab = vocab, .options = options});
  for (const SamplingOptions& options : kOptions) check_same({.vocab = 8193, .options = options, .rows = 2});
  check_same({.vocab = 65, .options = kOptions[1], .rows = 9, .beyond = 7});
}

TEST_CASE("sampling: a GPU chooses the CPU's tokens among equal ones", "[cuda]") {
  for (const SamplingOptions& options : kOptions)
    for (double grain : {1.0, 4.0, 1000.0}) check_same({.vocab = 300, .options = options, .grain = grain});
  // The tokens at the edge of the likely ones are equal, and only the first of them stay.
  for (double top_p : {1e-300, 0.01, 0.3, 0.5, 0.999999})
    check_same({.vocab = 700, .options = {.temperature = 1, .top_p = top_p}, .grain = 1000.0});
  for (int top_k : {1, 2, 299, 300, 301, 1 << 30})
    check_same({.vocab = 300, .options = {.temperature = 1, .top_k = top_k, .top_p = 0.99}, .grain = 2.0});
}

TEST_CASE("sampling: a GPU penalises the CPU's tokens, and keeps tokens as likely as min-p", "[cuda]") {
  for (double penalty : {0.3, 1.5, 100.0})
    for (double temperature : {0.0, 1.0})
      check_same({.vocab = 100,
                  .options = {.temperature = temperature, .repetition_penalty = penalty},
                  .grain = temperature == 0 ? 1.0 : 0.0,
                  .rows = 6});
  for (double min_p : {1.0, 0.5, 1e-6})
    check_same({.vocab = 100, .options = {.temperature = 1 / M_LN2, .min_p = min_p}, .grain = 1.0, .rows = 9});
}

TEST_CASE("sampling: a GPU leaves out holes, as the CPU, at any temperature", "[cuda]") {
  std::vector<int32_t> most;
  for (int32_t i = 0; i < 600; ++i)
    if (i % 97 != 5) most.push_back(i);
  for (const SamplingOptions& options : kOptions) {
    check_same({.vocab = 600, .options = options, .holes = most});
    check_same({.vocab = 600, .options = options, .holes = {0, 31, 32, 599}});
  }
  for (double temperature : {1e-300, 1e-3, 10.0, 1e6})
    check_same({.vocab = 600, .options = {.temperature = temperature}, .spread = 20, .holes = most});
}

TEST_CASE("sampling: a GPU reports logits that are not finite, whatever the token", "[cuda]") {
  for (const float bad : {INFINITY, -INFINITY, NAN})
    for (const size_t at : {size_t{0}, size_t{31}, size_t{517}, size_t{599}}) {
      std::vector<float> logits(600, 1.0f);
      logits[at] = bad;
      for_machines([&](LaunchContext& context) {
        const Held<float> of_logits(logits, "logits");
        const Held<int32_t> sequence({0}, "sequences"), chosen({7}, "chosen");
        const Held<TextState> text(std::vector<TextState>(1), "states");
        const Held<uint32_t> hole(reference::token_set(600, {static_cast<int32_t>(at)}), "holes");
        sample(context, {.logits = of_logits.data(),
                         .rows = 1,
                         .vocab = 600,
                         .stride = 600,
                         .options = {.temperature = 1},
                         .holes = hole.data(),
                         .sequences = sequence.data(),
                         .text = text.data(),
                         .chosen = chosen.data()});
        CHECK(chosen.values()[0] == kNotFinite);
        CHECK(text.values()[0].id == kNotFinite);
      });
    }
}

TEST_CASE("sampling: the rows of a step are the newest tokens of their texts", "[cuda]") {
  std::vector<TextState> states(5);
  for (size_t t = 0; t < states.size(); ++t)
    states[t] = {.id = static_cast<int32_t>(10 * t), .token = static_cast<int32_t>(t), .draws = 0, .text = 0};
  const Held<TextState> text(states, "states");
  const Held<int32_t> sequences({4, 0, 2}, "sequences"), ids({0, 0, 0}, "ids"), places({0, 0, 0}, "places");
  LaunchContext context = a_context();
  next_rows(
      context,
      {.sequences = sequences.data(), .text = text.data(), .rows = 3, .ids = ids.data(), .places = places.data()});
  CHECK(ids.values() == std::vector<int32_t>{40, 0, 20});
  CHECK(places.values() == std::vector<int32_t>{4, 0, 2});
  CHECK((ids.intact() && places.intact()));
}

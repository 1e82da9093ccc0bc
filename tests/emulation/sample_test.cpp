// SPDX-License-Identifier: Apache-2.0
// The choice of tokens on the emulated device is that of the CPU, token by token.

#include "kernels/sample/sample.h"

#include "engine/base/philox.h"
#include "tests/emulation/on_device.h"
#include "tests/reference/sample.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

/// Memory with any elements, written and read by the host.
template <typename T>
class Held {
 public:
  Held(const std::vector<T>& values, const std::string& name)
      : memory_(values.size() * sizeof(T), name), count_(values.size()) {
    host_access.write(memory_.data(), values.data(), count_ * sizeof(T));
  }
  T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  std::vector<T> values() const {
    std::vector<T> values(count_);
    host_access.read(values.data(), memory_.data(), count_ * sizeof(T));
    return values;
  }
  bool intact() const { return memory_.intact(); }

 private:
  emulation::DeviceMemory memory_;
  size_t count_;
};

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
  for_orders([&](LaunchContext& context) {
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

TEST_CASE("sampling: a GPU chooses the CPU's tokens, around the sizes of a warp and of a block") {
  for (int64_t vocab : {1, 2, 31, 32, 33, 511, 512, 513})
    for (const SamplingOptions& options : kOptions) check_same({.vocab = vocab, .options = options});
  for (const SamplingOptions& options : kOptions) check_same({.vocab = 8193, .options = options, .rows = 2});
  check_same({.vocab = 65, .options = kOptions[1], .rows = 9, .beyond = 7});
}

TEST_CASE("sampling: a GPU chooses the CPU's tokens among equal ones") {
  for (const SamplingOptions& options : kOptions)
    for (double grain : {1.0, 4.0, 1000.0}) check_same({.vocab = 300, .options = options, .grain = grain});
  // The tokens at the edge of the likely ones are equal, and only the first of them stay.
  for (double top_p : {1e-300, 0.01, 0.3, 0.5, 0.999999})
    check_same({.vocab = 700, .options = {.temperature = 1, .top_p = top_p}, .grain = 1000.0});
  for (int top_k : {1, 2, 299, 300, 301, 1 << 30})
    check_same({.vocab = 300, .options = {.temperature = 1, .top_k = top_k, .top_p = 0.99}, .grain = 2.0});
}

TEST_CASE("sampling: a GPU penalises the CPU's tokens, and keeps tokens as likely as min-p") {
  for (double penalty : {0.3, 1.5, 100.0})
    for (double temperature : {0.0, 1.0})
      check_same({.vocab = 100,
                  .options = {.temperature = temperature, .repetition_penalty = penalty},
                  .grain = temperature == 0 ? 1.0 : 0.0,
                  .rows = 6});
  for (double min_p : {1.0, 0.5, 1e-6})
    check_same({.vocab = 100, .options = {.temperature = 1 / M_LN2, .min_p = min_p}, .grain = 1.0, .rows = 9});
}

TEST_CASE("sampling: a GPU leaves out holes, as the CPU, at any temperature") {
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

TEST_CASE("sampling: a GPU reports logits that are not finite, whatever the token") {
  for (const float bad : {INFINITY, -INFINITY, NAN})
    for (const size_t at : {size_t{0}, size_t{31}, size_t{517}, size_t{599}}) {
      std::vector<float> logits(600, 1.0f);
      logits[at] = bad;
      for_orders([&](LaunchContext& context) {
        const Held<float> of_logits(logits, "logits");
        const Held<int32_t> sequence({0}, "sequences"), chosen({7}, "chosen");
        const Held<TextState> text({TextState{}}, "states");
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

TEST_CASE("sampling: the rows of a step are the newest tokens of their texts") {
  std::vector<TextState> states(5);
  for (size_t t = 0; t < states.size(); ++t)
    states[t] = {.id = static_cast<int32_t>(10 * t), .token = static_cast<int32_t>(t), .draws = 0, .text = 0};
  const Held<TextState> text(states, "states");
  const Held<int32_t> sequences({4, 0, 2}, "sequences"), ids({0, 0, 0}, "ids"), places({0, 0, 0}, "places");
  LaunchContext context = cuda_context();
  next_rows(
      context,
      {.sequences = sequences.data(), .text = text.data(), .rows = 3, .ids = ids.data(), .places = places.data()});
  CHECK(ids.values() == std::vector<int32_t>{40, 0, 20});
  CHECK(places.values() == std::vector<int32_t>{4, 0, 2});
  CHECK((ids.intact() && places.intact()));
}

// SPDX-License-Identifier: Apache-2.0
// Compares text generation with kept keys and values with the forward pass of training over the whole text on the CPU.
// The tests of GPUs link the same laws with another device.

#include "models/generation.h"

#include <algorithm>
#include <barrier>
#include <cmath>
#include <map>
#include <thread>

#include "engine/base/philox.h"
#include "tests/equivalence/trained.h"
#include "tests/golden/device.h"
#include "tests/models/mixed_layers.h"
#include "tests/test.hpp"
#include "trainer/runtime/rank/rank.h"

using namespace slipstream;

namespace {

using Weights = std::map<std::string, std::vector<float>>;  // of whole tensors

constexpr int64_t kCapacity = 24;

models::ModelOptions options_of(Family family) {
  models::ModelOptions o = family == Family::gpt2 ? equivalence::tiny_gpt2() : equivalence::tiny_llama();
  o.family = family;
  o.heads = family == Family::gpt2 ? 2 : 4;
  o.context = o.tokens = kCapacity;
  if (family == Family::mistral) o.window = 5, o.kv_heads = 4;
  if (family == Family::qwen2) o.window = 5, o.window_layers = {1};
  if (family == Family::llama) o.rope_scaling = {.factor = 4, .original_context = 16};
  if (family == Family::qwen3) o.head_dim = 10, o.tie_embeddings = true;
  return o;
}

/// The model of training on one rank, with random weights.
class Whole {
 public:
  explicit Whole(const models::ModelOptions& options)
      : layout_{.name = "generation", .model = options, .micro_batch = 1, .max_norm = 0},
        rank_(make(layout_, staged_)) {
    const auto& parameters = rank_.job().model.parameters;
    for (size_t p = 0; p < parameters.size(); ++p)
      for (size_t t = 0; t < parameters[p].tensors.size(); ++t) {
        const NamedTensor& named = parameters[p].tensors[t];
        const Philox random(9, named.name);
        std::vector<float> values(static_cast<size_t>(named.whole_elems()));
        for (size_t i = 0; i < values.size(); ++i)
          values[i] = (parameters[p].init.kind == Init::Kind::ones ? 1.0f : 0.0f) + 0.2f * random.normal(i);
        rank_.set_tensor(p, t, values);
        weights[named.name] = std::move(values);
      }
  }

  std::vector<float> logits_after(std::vector<int32_t> text) {
    const int64_t used = std::ssize(text);
    text.resize(static_cast<size_t>(kCapacity));
    rank_.evaluate(text, std::vector<int32_t>(text.size(), 0));
    std::vector<float> logits = rank_.logits(used - 1);
    logits.resize(static_cast<size_t>(layout_.model.vocab));
    return logits;
  }

  Weights weights;

 private:
  static runtime::Rank make(const equivalence::Layout& layout, int64_t& staged) {
    auto job = equivalence::make_job(layout, 0);
    std::vector<std::unique_ptr<comm::Communicator>> none(job->channels.size());
    return runtime::Rank(std::move(job), make_cpu_device(), std::move(none), {},
                         equivalence::detail::loader(layout, 0, staged));
  }

  equivalence::Layout layout_;
  int64_t staged_ = 0;
  runtime::Rank rank_;
};

/// Padding is zero.
void read_part(const Weights& weights, const NamedTensor& tensor, int64_t begin, std::span<float> out) {
  std::fill(out.begin(), out.end(), 0.0f);
  const std::vector<float>& whole = weights.at(tensor.name);
  tensor.for_runs(tensor.split.index, begin, std::ssize(out), [&](int64_t held, int64_t at, int64_t count) {
    count = std::min(count, std::ssize(whole) - at);
    if (count > 0) std::copy_n(whole.begin() + at, count, out.begin() + held - begin);
  });
}

models::GenerationSetup setup_of(const Weights& weights, int sequences, int threads = 1) {
  return {.sequences = sequences,
          .capacity = kCapacity,
          .threads = threads,
          .device = golden::make_device(),
          .sampling = {.temperature = 0},
          .read = [&weights](const NamedTensor& tensor, int64_t begin, std::span<float> out) {
            read_part(weights, tensor, begin, out);
          }};
}

/// The largest difference, relative to the largest logit.
double difference_of(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, static_cast<double>(std::abs(a[i] - b[i])));
    largest = std::max(largest, static_cast<double>(std::abs(b[i])));
  }
  return worst / largest;
}

int32_t best_of(const std::vector<float>& logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// The logits after the text. The drawn token is the first one with the highest logit.
std::vector<float> begin(models::Generation& generation, int sequence, const std::vector<int32_t>& ids) {
  generation.begin(sequence, ids);
  const std::vector<int32_t> drawn(1, generation.take().front());
  std::vector<float> logits = generation.logits(0);
  CHECK(drawn[0] == best_of(logits));
  return logits;
}
/// Adds these tokens in place of the drawn ones.
std::vector<std::vector<float>> step(models::Generation& generation, const std::vector<int>& sequences,
                                     const std::vector<int32_t>& ids) {
  for (size_t i = 0; i < ids.size(); ++i) generation.replace_drawn(sequences[i], ids[i]);
  generation.step(sequences);
  const std::span<const int32_t> taken = generation.take();
  const std::vector<int32_t> drawn(taken.begin(), taken.end());
  std::vector<std::vector<float>> logits;
  for (size_t i = 0; i < ids.size(); ++i) {
    logits.push_back(generation.logits(static_cast<int64_t>(i)));
    CHECK(drawn[i] == best_of(logits[i]));
  }
  return logits;
}

constexpr Family kFamilies[] = {Family::gpt2, Family::llama, Family::mistral, Family::qwen2, Family::qwen3};
// Sums of tens of terms are added in another order.
constexpr double kTolerance = 5e-6;

}  // namespace

TEST_CASE("generation: kept keys and values give the logits and tokens of the whole text", "[models]") {
  std::vector<models::ModelOptions> models;
  for (const Family family : kFamilies) models.push_back(options_of(family));
  models.push_back(options_of(Family::llama));
  models.back().layers = 4;
  models.back().table = tests::mixed_layers;
  for (const models::ModelOptions& options : models) {
    Whole whole(options);
    models::Generation generation(options, setup_of(whole.weights, 1, 2));
    // Prompts of one row, of few rows and of many rows take different products.
    for (const int64_t prompt : {1, 5, 12}) {
      CAPTURE(name_of(options.family), options.layers, prompt);
      std::vector<int32_t> text, recomputed;
      for (int64_t i = 0; i < prompt; ++i) text.push_back(static_cast<int32_t>((7 * i + prompt) % 150));
      recomputed = text;
      std::vector<float> logits = begin(generation, 0, text);
      while (true) {
        const std::vector<float> expected = whole.logits_after(recomputed);
        CHECK(difference_of(logits, expected) < kTolerance);
        text.push_back(best_of(logits));
        recomputed.push_back(best_of(expected));
        CHECK(generation.tokens(0) == std::ssize(text) - 1);
        if (std::ssize(text) > kCapacity) break;
        logits = step(generation, {0}, {text.back()}).front();
      }
      CHECK(text == recomputed);
    }
  }
}

TEST_CASE("generation: a sequence has the same bits alone and among others", "[models]") {
  for (const Family family : kFamilies) {
    CAPTURE(name_of(family));
    Whole whole(options_of(family));
    constexpr int kSequences = 10;  // more than one product of few rows takes
    models::Generation together(options_of(family), setup_of(whole.weights, kSequences)),
        alone(options_of(family), setup_of(whole.weights, 1));
    std::vector<int> which;
    std::vector<int32_t> next;
    std::vector<std::vector<int32_t>> texts;
    for (int i = 0; i < kSequences; ++i) {
      texts.emplace_back(static_cast<size_t>(1 + i), 3 * i);
      which.push_back(i);
      next.push_back(best_of(begin(together, i, texts.back())));
    }
    std::vector<std::vector<float>> logits;
    std::vector<std::vector<int32_t>> made;
    for (int count = 0; count < 4; ++count) {
      made.push_back(next);
      logits = step(together, which, next);
      for (int i = 0; i < kSequences; ++i) next[static_cast<size_t>(i)] = best_of(logits[static_cast<size_t>(i)]);
    }
    for (const int i : which) {
      std::vector<float> last = begin(alone, 0, texts[static_cast<size_t>(i)]);
      for (const auto& ids : made) last = step(alone, {0}, {ids[static_cast<size_t>(i)]}).front();
      CHECK(last == logits[static_cast<size_t>(i)]);
    }
  }
}

/// The logits of each of `ranks` threads that share the model, after the prompt and the next token.
std::vector<std::vector<float>> shared_logits(const models::ModelOptions& options, const Weights& weights, size_t ranks,
                                              const std::vector<int32_t>& prompt, int32_t next) {
  std::vector<std::vector<float>> results(ranks), parts(ranks);
  std::barrier<> meeting(static_cast<std::ptrdiff_t>(ranks));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      models::ModelOptions o = options;
      o.tensor = static_cast<int>(ranks), o.tensor_index = static_cast<int>(rank);
      models::GenerationSetup setup = setup_of(weights, 1);
      const auto share = [&, rank](std::span<const float> mine, const auto& use) {
        parts[rank].assign(mine.begin(), mine.end());
        meeting.arrive_and_wait();
        use();
        meeting.arrive_and_wait();
      };
      setup.sum = [&](std::span<float> values) {
        share(values, [&] {
          for (size_t i = 0; i < values.size(); ++i) {
            values[i] = 0;
            for (const auto& part : parts) values[i] += part[i];
          }
        });
      };
      setup.gather = [&](std::span<const float> part, std::span<float> all) {
        share(part, [&] {
          for (size_t r = 0; r < ranks; ++r)
            std::copy(parts[r].begin(), parts[r].end(), all.begin() + static_cast<int64_t>(r * part.size()));
        });
      };
      models::Generation generation(o, std::move(setup));
      begin(generation, 0, prompt);
      results[rank] = step(generation, {0}, {next}).front();
    });
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST_CASE("generation: ranks that share the model give its logits, also when they share key-value heads", "[models]") {
  for (const Family family : kFamilies)
    for (const size_t ranks : {2, 4}) {
      models::ModelOptions o = options_of(family);
      if (family == Family::gpt2) o.heads = o.kv_heads = 4;
      const bool shares = static_cast<int64_t>(ranks) > o.kv_heads;
      CAPTURE(name_of(family), ranks, o.kv_heads, shares);
      Whole whole(o);
      const auto results = shared_logits(o, whole.weights, ranks, {5, 3, 8}, 7);
      for (const auto& logits : results) CHECK(logits == results[0]);
      CHECK(difference_of(results[0], whole.logits_after({5, 3, 8, 7})) < kTolerance);
    }
}

TEST_CASE("generation: weights in bfloat16 give the logits of rounded weights", "[models]") {
  Whole whole(options_of(Family::llama));
  Weights rounded = whole.weights;
  for (auto& [name, values] : rounded)
    if (!name.ends_with("norm.weight"))
      for (float& value : values) value = static_cast<float>(bfloat16(value));
  models::Generation wide(options_of(Family::llama), setup_of(rounded, 1));
  models::GenerationSetup setup = setup_of(rounded, 1);
  setup.dtype = DType::bf16;
  models::Generation narrow(options_of(Family::llama), std::move(setup));
  const std::vector<int32_t> prompt(12, 5);
  // A lane of a GPU adds the elements of 16 bytes: sums have another order.
  const double tolerance = golden::make_device()->kind() == DeviceKind::cpu ? 0 : kTolerance;
  CHECK(difference_of(begin(narrow, 0, prompt), begin(wide, 0, prompt)) <= tolerance);
  // Kept keys and values are rounded, too.
  const double after = difference_of(step(narrow, {0}, {9}).front(), step(wide, {0}, {9}).front());
  CHECK(after > kTolerance);
  CHECK(after < 0x1p-7);
  CHECK(narrow.weight_bytes() < wide.weight_bytes());
  CHECK(2 * narrow.cache_bytes(0) == wide.cache_bytes(0));
}

/// The tokens of texts of several lengths, which end one after the other, by rows that are not in order. The host takes
/// the tokens as late as it may.
std::vector<std::vector<int32_t>> continued(const Weights& weights, const models::ModelOptions& options, bool records,
                                            DType dtype, const std::vector<int>& some = {}) {
  constexpr int kTexts = 3, kSteps = 9;
  models::GenerationSetup setup = setup_of(weights, kTexts);
  setup.records = records;
  setup.dtype = dtype;
  setup.sampling = {.temperature = 1.1, .repetition_penalty = 1.2};
  setup.seed = 5;
  setup.holes = {3, 4, 5};
  models::Generation generation(options, std::move(setup));
  std::vector<std::vector<int32_t>> made(kTexts);
  for (int t = 0; t < kTexts; ++t) {
    generation.begin(t, std::vector<int32_t>(static_cast<size_t>(2 + 3 * t), 7 * t), static_cast<uint32_t>(t));
    made[static_cast<size_t>(t)].push_back(generation.take().front());
  }
  std::vector<std::vector<int>> on_their_way;
  const auto take = [&] {
    const std::span<const int32_t> ids = generation.take();
    for (size_t i = 0; i < ids.size(); ++i) made[static_cast<size_t>(on_their_way.front()[i])].push_back(ids[i]);
    on_their_way.erase(on_their_way.begin());
  };
  for (int s = 0; s < kSteps; ++s) {
    const std::vector<int> rows = !some.empty() ? some
                                  : s < 4       ? std::vector<int>{2, 0, 1}
                                  : s < 7       ? std::vector<int>{1, 2}
                                                : std::vector<int>{2, 1};
    generation.step(rows);
    on_their_way.push_back(rows);
    if (static_cast<int>(on_their_way.size()) > generation.passes_ahead()) take();
  }
  while (!on_their_way.empty()) take();
  return made;
}

TEST_CASE("generation: recorded steps draw the tokens of issued ones, and each text those that it has alone",
          "[models]") {
  for (const Family family : kFamilies)
    for (const DType dtype : {DType::f32, DType::bf16}) {
      if (dtype == DType::bf16 && family != Family::llama) continue;
      CAPTURE(name_of(family), name_of(dtype));
      const models::ModelOptions options = options_of(family);
      Whole whole(options);
      const auto recorded = continued(whole.weights, options, true, dtype);
      CHECK(recorded == continued(whole.weights, options, false, dtype));
      CHECK((recorded[0].size() == 5 && recorded[1].size() == 10 && recorded[2].size() == 10));
      for (const auto& text : recorded)
        CHECK(std::none_of(text.begin(), text.end(), [](int32_t id) { return id >= 3 && id <= 5; }));
      if (family == Family::llama) CHECK(recorded[1] == continued(whole.weights, options, true, dtype, {1})[1]);
    }
}

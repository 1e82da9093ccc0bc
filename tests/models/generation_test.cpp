// SPDX-License-Identifier: Apache-2.0
// Text generation with kept keys and values against the forward pass of training over the whole text on the CPU. The
// tests of GPUs link the same laws with another device.

#include "models/generation.h"

#include <algorithm>
#include <barrier>
#include <cmath>
#include <map>
#include <thread>

#include "engine/base/philox.h"
#include "runtime/rank.h"
#include "tests/equivalence/trained.h"
#include "tests/golden/device.h"
#include "tests/test.hpp"

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
          .read = [&weights](const NamedTensor& tensor, int64_t begin, std::span<float> out) {
            read_part(weights, tensor, begin, out);
          }};
}

/// Largest difference over the largest logit.
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

std::vector<float> begin(models::Generation& generation, int sequence, const std::vector<int32_t>& ids) {
  std::vector<float> logits;
  generation.begin(sequence, ids, [&](size_t, std::span<float> seen) { logits.assign(seen.begin(), seen.end()); });
  return logits;
}
/// Each thread writes its own element, and each element once.
std::vector<std::vector<float>> step(models::Generation& generation, const std::vector<int>& sequences,
                                     const std::vector<int32_t>& ids) {
  std::vector<std::vector<float>> logits(sequences.size());
  generation.step(sequences, ids, [&](size_t index, std::span<float> seen) {
    logits[index].insert(logits[index].end(), seen.begin(), seen.end());
    std::fill(seen.begin(), seen.end(), NAN);  // allowed
  });
  return logits;
}

constexpr Family kFamilies[] = {Family::gpt2, Family::llama, Family::mistral, Family::qwen2, Family::qwen3};
// Sums of tens of terms in another order.
constexpr double kTolerance = 5e-6;

}  // namespace

TEST_CASE("generation: kept keys and values give the logits and tokens of the whole text", "[models]") {
  for (const Family family : kFamilies) {
    Whole whole(options_of(family));
    models::Generation generation(options_of(family), setup_of(whole.weights, 1, 2));
    // Prompts of one row, of few rows and of many rows take different products.
    for (const int64_t prompt : {1, 5, 12}) {
      CAPTURE(name_of(family), prompt);
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

/// Logits of each of `ranks` threads that share the model, after the prompt and the token behind it.
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
  CHECK(difference_of(step(narrow, {0}, {9}).front(), step(wide, {0}, {9}).front()) <= tolerance);
  CHECK(narrow.weight_bytes() < wide.weight_bytes());
}

// SPDX-License-Identifier: Apache-2.0
// Dropout: every layout trains the model of one rank with the same masks; evaluation has none; closed forms.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/equivalence/trained.h"
#include "tests/test.hpp"

namespace slipstream::equivalence {  // where Layout is that of the tests
namespace {

constexpr int kSteps = 3;
constexpr double kTolerance = 2e-5;  // the tolerance of gradient accumulation

Layout dropping(bool llama, DType dtype = DType::f32) {
  Layout layout{.name = llama ? "llama" : "gpt2",
                .model = llama ? tiny_llama() : tiny_gpt2(),
                .micro_batch = 2,
                .micro_batches = 4};
  layout.model.tokens = layout.model.context = 12;
  layout.model.vocab = 61;
  layout.model.dtype = dtype;
  layout.model.dropout = {.embedding = 0.1, .residual = 0.2, .attention = 0.3, .seed = 11};
  return layout;
}

Layout without(Layout layout) {
  layout.model.dropout = {};
  return layout;
}

/// Losses of the first sequences of step 1, without dropout.
std::vector<float> evaluated(runtime::Rank& rank, const Layout& layout) {
  std::vector<int32_t> ids, targets;
  for (int64_t row = 0; row < layout.micro_batch; ++row)
    for (int64_t t = 0; t < layout.model.tokens; ++t) {
      ids.push_back(token_of(1, row, t, layout.model.vocab));
      targets.push_back(token_of(1, row, t + 1, layout.model.vocab));
    }
  return rank.evaluate(ids, targets);
}

/// The same losses of a new model in which the tensors whose name has one of `parts` are zero.
std::vector<float> evaluated_without(Layout layout, const std::vector<std::string>& parts) {
  std::vector<float> losses;
  layout.inspect = [&](runtime::Rank& rank) {
    const std::vector<ParameterSpec>& parameters = rank.job().model.parameters;
    for (size_t p = 0; p < parameters.size(); ++p)
      for (size_t t = 0; t < parameters[p].tensors.size(); ++t) {
        const NamedTensor& named = parameters[p].tensors[t];
        if (std::any_of(parts.begin(), parts.end(),
                        [&](const std::string& part) { return named.name.find(part) != std::string::npos; }))
          rank.set_tensor(p, t, std::vector<float>(static_cast<size_t>(named.whole_elems())));
      }
    losses = evaluated(rank, layout);
  };
  train(layout, 0);
  return losses;
}

double mean(const std::vector<float>& losses) {
  return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
}

/// Changes that keep the model, by name.
std::vector<std::pair<const char*, std::function<void(Layout&)>>> changes() {
  std::vector<std::pair<const char*, std::function<void(Layout&)>>> rows{
      {"threads", [](Layout& l) { l.threads = 3; }},
      {"selective recomputation", [](Layout& l) { l.recompute = Recomputation::selective; }},
      {"full recomputation", [](Layout& l) { l.recompute = Recomputation::full; }},
      {"one micro-batch", [](Layout& l) { l.micro_batch = 8, l.micro_batches = 1; }},
      {"context", [](Layout& l) { l.context = 2; }},
      {"context 3, recomputed", [](Layout& l) { l.context = 3, l.recompute = Recomputation::full; }},
      {"pipeline", [](Layout& l) { l.stages = 2; }},
      {"pipeline of three, its middle with one layer",
       [](Layout& l) {
         l.stages = 3, l.layers = {1, 1, 0};
       }},
      {"zero-bubble", [](Layout& l) { l.stages = 2, l.schedule = ScheduleKind::zb_h1; }},
      {"delays", [](Layout& l) { l.ranks = 2, l.micro_batches = 2, l.delay_seed = 3; }},
      {"tensor, context and pipeline", [](Layout& l) { l.tensor = 2, l.context = 2, l.stages = 2; }},
  };
  for (int stage : {0, 1, 2, 3})
    rows.emplace_back("data", [stage](Layout& l) {
      l.ranks = 2, l.micro_batches = 2, l.zero_stage = stage;
      l.model.split_tied_embedding = stage == 0;
    });
  for (bool sequence : {false, true}) {
    rows.emplace_back("tensor in chunks",
                      [sequence](Layout& l) { l.tensor = 2, l.tensor_chunks = 3, l.sequence_parallel = sequence; });
    rows.emplace_back("tensor, zero-bubble, recomputed", [sequence](Layout& l) {
      l.tensor = 2, l.stages = 2, l.schedule = ScheduleKind::zb_h1, l.sequence_parallel = sequence;
      l.recompute = Recomputation::full;
    });
    rows.emplace_back("tensor and ZeRO-3", [sequence](Layout& l) {
      l.tensor = 2, l.ranks = 2, l.micro_batches = 2, l.zero_stage = 3, l.sequence_parallel = sequence;
      l.model.split_tied_embedding = false;
    });
  }
  return rows;
}

bool is_close(const Trained& a, const Trained& b) {
  for (size_t i = 0; i < b.losses.size(); ++i)
    if (std::abs(a.losses[i] - b.losses[i]) > kTolerance * b.losses[i]) return false;
  return difference(a.gradients, b.gradients) < kTolerance && difference(a.weights, b.weights) < kTolerance;
}

}  // namespace

TEST_CASE("dropout: every layout trains the model of one rank, with its bits where it has them without dropout") {
  for (bool llama : {false, true}) {
    const Layout base = dropping(llama);
    const Trained one = train(base, kSteps), undropped = train(without(base), kSteps);
    CHECK(difference(one.gradients, undropped.gradients) > 1e-2);
    for (const auto& [name, change] : changes()) {
      CAPTURE(base.name, name);
      const Trained other = train(with(base, change), kSteps);
      for (const std::string& hash : other.rank_hashes) CHECK(hash == other.hash);
      REQUIRE(other.names == one.names);
      CHECK(is_close(other, one));
      if (train(with(without(base), change), kSteps).hash == undropped.hash) CHECK(other.hash == one.hash);
    }
  }
}

TEST_CASE("dropout: masks that forget the step or the sequences before a micro-batch are seen") {
  const Layout base = dropping(false);
  const Trained one = train(base, kSteps);
  CHECK_FALSE(is_close(
      train(with(base, [](Layout& l) { l.renumbers = [](int64_t& step, int64_t&) { step = 1; }; }), kSteps), one));
  const auto forgets = [](int64_t&, int64_t& first) { first = 0; };
  const Trained other = train(with(base, [&](Layout& l) { l.renumbers = forgets; }), kSteps);
  CHECK_FALSE(is_close(other, one));
  // Without the number of a micro-batch, the layouts train different models.
  CHECK_FALSE(is_close(
      train(with(base, [&](Layout& l) { l.renumbers = forgets, l.micro_batch = 8, l.micro_batches = 1; }), kSteps),
      other));
}

TEST_CASE("dropout: bfloat16 keeps its bits on several ranks of data and when it recomputes") {
  const Layout base = dropping(false, DType::bf16);
  const Trained one = train(base, kSteps);
  for (double loss : one.losses) CHECK(std::isfinite(loss));
  CHECK(train(with(base, [](Layout& l) { l.recompute = Recomputation::full; }), kSteps).hash == one.hash);
  const auto halved = [](Layout& l) { l.ranks = 2, l.micro_batches = 2; };
  if (train(with(without(base), halved), kSteps).hash == train(without(base), kSteps).hash)
    CHECK(train(with(base, halved), kSteps).hash == one.hash);
}

TEST_CASE("dropout: evaluation has the bits of a model without it, and training with rate 0, too") {
  for (bool llama : {false, true}) {
    const Layout base = dropping(llama);
    CHECK(evaluated_without(base, {}) == evaluated_without(without(base), {}));
    Layout none = base;
    none.model.dropout = {.seed = 12};
    const auto items_of = [](const Layout& layout) {
      std::vector<std::string> names;
      const std::unique_ptr<Job> job = make_job(layout, 0);
      for (const SpineItem& item : job->train().spine) names.push_back(item.name);
      return names;
    };
    CHECK(items_of(none) == items_of(without(base)));
    CHECK(train(none, kSteps).hash == train(without(base), kSteps).hash);
  }
}

TEST_CASE("dropout: without the outputs of blocks, or without embeddings, losses have closed forms") {
  constexpr double kAll = 0.9999999999;  // the largest rate: one word of 2^32 is kept
  for (bool llama : {false, true}) {
    Layout base = dropping(llama);
    base.micro_batches = 1;
    CAPTURE(base.name);
    base.model.dropout = {.residual = kAll, .seed = 4};
    const std::vector<std::string> products =
        llama ? std::vector<std::string>{"o_proj", "down_proj"} : std::vector<std::string>{"c_proj"};
    CHECK(train(base, 1).losses[0] == Approx(mean(evaluated_without(base, products))).epsilon(1e-6));
    base.model.dropout = {.embedding = kAll, .seed = 4};
    base.model.tie_embeddings = false;
    const std::vector<std::string> tables =
        llama ? std::vector<std::string>{"embed_tokens"} : std::vector<std::string>{"wte", "wpe"};
    CHECK(train(base, 1).losses[0] == Approx(mean(evaluated_without(base, tables))).epsilon(1e-6));
  }
}

}  // namespace slipstream::equivalence

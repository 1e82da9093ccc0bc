// SPDX-License-Identifier: Apache-2.0
// Packed documents train as documents of their own, and every layout trains the model of one rank.

#include <algorithm>
#include <numeric>

#include "tests/engine/data/disk.h"
#include "tests/equivalence/trained.h"
#include "tests/test.hpp"

namespace slipstream::equivalence {  // where Layout is that of the tests
namespace {

constexpr int kSteps = 3;
constexpr double kTolerance = 2e-5;  // the tolerance of gradient accumulation

Layout packed(bool llama) {
  Layout layout{.name = llama ? "llama" : "gpt2",
                .model = llama ? tiny_llama() : tiny_gpt2(),
                .micro_batch = 2,
                .micro_batches = 4,
                .document_tokens = 7};
  layout.model.tokens = 24;
  layout.model.context = 24;
  layout.model.vocab = 61;
  layout.model.documents = true;
  return layout;
}

void check_close(const Trained& a, const Trained& b) {
  for (const std::string& hash : a.rank_hashes) CHECK(hash == a.hash);
  REQUIRE(a.names == b.names);
  for (size_t i = 0; i < b.losses.size(); ++i) CHECK(a.losses[i] == Approx(b.losses[i]).epsilon(kTolerance));
  CHECK(difference(a.gradients, b.gradients) < kTolerance);
  CHECK(difference(a.weights, b.weights) < kTolerance);
}

}  // namespace

TEST_CASE("documents: the losses of a packed sequence are those of its documents alone") {
  const bool llama = GENERATE(false, true);
  Layout layout = packed(llama);
  INFO(layout.name);
  layout.micro_batches = 1;
  layout.inspect = [&](runtime::Rank& rank) {
    const int64_t T = layout.model.tokens;
    const auto size = static_cast<size_t>(layout.micro_batch * T);
    std::vector<int32_t> ids, targets, begins;
    for (int64_t row = 0; row < layout.micro_batch; ++row)
      for (int64_t t = 0; t < T; ++t) {
        ids.push_back(token_of(9, row, t, layout.model.vocab));
        targets.push_back(token_of(9, row, t + 1, layout.model.vocab));
        begins.push_back(document_begin_of(layout, row, t));
      }
    const std::vector<float> together = rank.evaluate(ids, targets, begins);
    const std::vector<float> unmasked = rank.evaluate(ids, targets, std::vector<int32_t>(size));
    double worst = 0, differs = 0;
    for (size_t i = 0; i < size; ++i) {
      // The document of token i stands at the begin of every row, followed by tokens that it does not see.
      const size_t row = i / static_cast<size_t>(T), at = i % static_cast<size_t>(T);
      const auto begin = static_cast<size_t>(begins[i]);
      std::vector<int32_t> own_ids(size, 1), own_targets(size, 1);
      for (size_t t = begin; t <= at; ++t) {
        own_ids[t - begin] = ids[row * static_cast<size_t>(T) + t];
        own_targets[t - begin] = targets[row * static_cast<size_t>(T) + t];
      }
      const float alone = rank.evaluate(own_ids, own_targets, std::vector<int32_t>(size))[at - begin];
      worst = std::max(worst, static_cast<double>(std::abs(alone - together[i])));
      differs = std::max(differs, static_cast<double>(std::abs(unmasked[i] - together[i])));
    }
    CHECK(worst < 2e-5);
    CHECK(differs > 1e-3);
  };
  train(layout, 1);
}

TEST_CASE("documents: every layout trains the model of one rank") {
  const bool llama = GENERATE(false, true);
  const Layout base = packed(llama);
  INFO(base.name);
  const Trained one = train(base, kSteps);
  const Trained unmasked = train(with(base, [](Layout& l) { l.model.documents = false; }), kSteps);
  CHECK(difference(one.gradients, unmasked.gradients) > 1e-3);
  for (size_t i = 0; i < one.names.size(); ++i) {
    if (one.names[i] != "transformer.wpe.weight") continue;
    const std::vector<float>& rows = one.gradients[i];  // of positions in a document
    for (int64_t position = 0; position < base.model.context; ++position) {
      const auto begin = rows.begin() + position * base.model.width;
      const bool used = std::any_of(begin, begin + base.model.width, [](float value) { return value != 0; });
      CHECK(used == (position < base.document_tokens));
    }
  }
  CHECK(std::count(one.names.begin(), one.names.end(), "transformer.wpe.weight") == (llama ? 0 : 1));
  const auto close = [&](const char* name, auto change) {
    INFO(name);
    const Trained other = train(with(base, change), kSteps);
    check_close(other, one);
    return other.hash;
  };
  CHECK(close("threads", [](Layout& l) { l.threads = 3; }) == one.hash);
  for (const Recomputation recompute : {Recomputation::selective, Recomputation::full})
    CHECK(close("recompute", [&](Layout& l) { l.recompute = recompute; }) == one.hash);
  for (const int stage : {0, 1, 2, 3})
    close("data", [&](Layout& l) {
      l.ranks = 2, l.micro_batches = 2, l.zero_stage = stage;
      l.model.split_tied_embedding = stage == 0;
    });
  for (const int context : {2, 3}) close("context", [&](Layout& l) { l.context = context; });
  close("tensor", [](Layout& l) { l.tensor = 2; });
  close("tensor with shared tokens", [](Layout& l) { l.tensor = 2, l.sequence_parallel = true; });
  close("pipeline", [](Layout& l) { l.stages = 2; });
  close("tensor, context and pipeline", [](Layout& l) { l.tensor = 2, l.context = 2, l.stages = 2; });
  close("context, recomputed", [](Layout& l) { l.context = 2, l.recompute = Recomputation::full; });
}

}  // namespace slipstream::equivalence

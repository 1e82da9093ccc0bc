// SPDX-License-Identifier: Apache-2.0
// Ranks that share layers train the model of one rank: sums of halves instead of wholes, so to a rounding error; and the
// same bits wherever the order of additions is the same.

#include <cstdio>

#include "comm/rehearse/hazards.h"
#include "comm/rehearse/seams.h"
#include "tests/equivalence/trained.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

constexpr int kSteps = 3;
// A sum of t parts rounds t - 1 times more than the sum of the whole; over these few layers and steps that stays far below.
constexpr double kTolerance = 2e-5;

Layout layout_of(bool llama) {
  Layout layout{.name = llama ? "llama" : "gpt2", .model = llama ? tiny_llama() : tiny_gpt2(), .micro_batch = 4};
  layout.model.heads = 4;
  layout.model.kv_heads = 4;
  layout.model.width = 32;
  layout.model.vocab = 151;  // of four ranks with 64 rows each one has padding only
  layout.model.tokens = layout.model.context = 8;
  return layout;
}

template <typename Change>
Layout with(Layout layout, Change change) {
  change(layout);
  return layout;
}

void check_same_model(const Trained& a, const Trained& b) {
  CHECK(a.names == b.names);
  CHECK(difference(a.losses.size() == b.losses.size() ? std::vector<float>(a.losses.begin(), a.losses.end()) : std::vector<float>{},
                   std::vector<float>(b.losses.begin(), b.losses.end())) < kTolerance);
  for (size_t i = 0; i < b.norms.size(); ++i) CHECK(a.norms[i] == Approx(b.norms[i]).epsilon(kTolerance));
  CHECK(difference(a.gradients, b.gradients) < kTolerance);
  CHECK(difference(a.weights, b.weights) < kTolerance);
  for (size_t i = 0; i < b.evaluations.size(); ++i) CHECK(a.evaluations[i] == Approx(b.evaluations[i]).epsilon(kTolerance));
}

}  // namespace

TEST_CASE("tensor ranks x chunks x sequence parallelism train the model of one rank", "[tensor]") {
  for (bool llama : {false, true}) {
    const Layout whole = with(layout_of(llama), [](Layout& l) { l.evaluate_between = true; });
    const Trained expected = train(whole, kSteps);
    for (int tensor : {2, 4})
      for (bool sequence : {false, true})
        for (int chunks : {1, 2, 4}) {
          CAPTURE(llama, tensor, sequence, chunks);
          const Trained shared = train(with(whole, [&](Layout& l) { l.tensor = tensor, l.sequence_parallel = sequence, l.tensor_chunks = chunks; }), kSteps);
          check_same_model(shared, expected);
        }
  }
}

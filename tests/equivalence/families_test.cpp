// SPDX-License-Identifier: Apache-2.0
// Every family trains the model of one rank on every axis: up to rounding where sums are divided, with the same bits
// over data ranks.

#include "tests/equivalence/table.h"
#include "tests/equivalence/trained.h"
#include "tests/models/mixed_layers.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

constexpr int kSteps = 3;
constexpr double kTolerance = 2e-5;  // the tolerance of tensor_test

/// What the families add to Llama, which the other tests train.
std::vector<Layout> families() {
  std::vector<Layout> rows;
  for (const Family family : {Family::llama, Family::mistral, Family::qwen2, Family::qwen3}) {
    Layout layout{.name = name_of(family), .model = tiny_llama(), .micro_batch = 4};
    models::ModelOptions& o = layout.model;
    o.family = family;
    o.kv_heads = family == Family::qwen2 ? 4 : 2;
    o.context = o.tokens = 8;
    if (family != Family::qwen2) o.head_dim = 10;  // heads wider than the model together
    if (family == Family::llama) o.rope_scaling = {.factor = 4, .original_context = 8};
    if (family != Family::llama) o.window = 3;
    if (family == Family::qwen2) o.window_layers = {1};
    if (family == Family::qwen3) o.window_layers = {0};
    rows.push_back(layout);
  }
  Layout mixed{.name = "mixed layers", .model = tiny_llama(), .micro_batch = 4};
  mixed.model.layers = 4;
  mixed.model.context = mixed.model.tokens = 8;
  mixed.model.table = tests::mixed_layers;
  rows.push_back(mixed);
  return rows;
}

void check_same_model(const Trained& a, const Trained& b) {
  CHECK(a.names == b.names);
  CHECK(difference(std::vector<float>(a.losses.begin(), a.losses.end()),
                   std::vector<float>(b.losses.begin(), b.losses.end())) < kTolerance);
  CHECK(difference(a.gradients, b.gradients) < kTolerance);
  CHECK(difference(a.weights, b.weights) < kTolerance);
}

}  // namespace

TEST_CASE("families: tensor, pipeline and context ranks, ZeRO and recomputation train the model of one rank",
          "[families]") {
  for (const Layout& whole : families()) {
    const Trained expected = train(whole, kSteps);
    const auto same = [&](const char* what, auto change) {
      CAPTURE(whole.name, what);
      check_same_model(train(with(whole, change), kSteps), expected);
    };
    for (const bool sequence : {false, true}) {
      same("tensor", [&](Layout& l) { l.tensor = 2, l.sequence_parallel = sequence, l.tensor_chunks = 2; });
      same("tensor in a pipeline that delays gradients of weights", [&](Layout& l) {
        l.tensor = 2, l.stages = 2, l.schedule = ScheduleKind::zb_h1, l.micro_batch = 2, l.micro_batches = 2;
        l.sequence_parallel = sequence;
      });
    }
    same("pipeline", [](Layout& l) { l.stages = 2, l.micro_batch = 1, l.micro_batches = 4; });
    same("context", [](Layout& l) { l.context = 2; });
    for (const int stage : {1, 2, 3})
      same("ZeRO", [&](Layout& l) {
        l.ranks = 2, l.micro_batch = 2, l.zero_stage = stage, l.model.split_tied_embedding = false;
      });
    same("accumulation", [](Layout& l) { l.micro_batch = 2, l.micro_batches = 2; });
  }
}

TEST_CASE("families: a window over context ranks trains the model of one rank", "[families]") {
  Layout mistral{.name = "mistral", .model = tiny_llama(), .micro_batch = 2, .micro_batches = 2, .document_tokens = 9};
  mistral.model.family = Family::mistral;
  mistral.model.kv_heads = 2;
  mistral.model.context = mistral.model.tokens = 24;
  const Trained all = train(mistral, kSteps);
  // Chunks have 6 tokens over 2 ranks, 4 over 3 and 3 over 4.
  for (const int64_t window : {1, 3, 4, 6, 10, 23, 24})
    for (const bool masked : {false, true}) {
      Layout whole = mistral;
      whole.model.window = window;
      whole.model.documents = masked;
      if (masked) whole.model.dropout = {.attention = 0.2, .seed = 5};
      const Trained expected = train(whole, kSteps);
      CHECK((difference(expected.gradients, all.gradients) > 1e-4) == (window < 24 || masked));
      const auto same = [&](const char* what, auto change) {
        CAPTURE(window, masked, what);
        check_same_model(train(with(whole, change), kSteps), expected);
      };
      for (const int context : {2, 3, 4}) same("context", [&](Layout& l) { l.context = context; });
      if (window != 4) continue;
      same("context, recomputed", [](Layout& l) { l.context = 4, l.recompute = Recomputation::full; });
      same("context and tensor", [](Layout& l) { l.context = 2, l.tensor = 2; });
      same("context, tensor and pipeline", [](Layout& l) { l.context = 2, l.tensor = 2, l.stages = 2; });
      for (const int stage : {1, 3})
        same("context and ZeRO", [&](Layout& l) {
          l.context = 4, l.ranks = 2, l.micro_batches = 1, l.zero_stage = stage;
          l.model.split_tied_embedding = false;
        });
    }
}

TEST_CASE("families: more tensor ranks than key-value heads train the model of one rank", "[families]") {
  for (const Family family : {Family::llama, Family::qwen2, Family::qwen3})
    for (const int64_t kv_heads : {1, 2}) {
      Layout whole{.name = name_of(family), .model = tiny_llama(), .micro_batch = 4};
      whole.model.family = family;
      whole.model.kv_heads = kv_heads;
      whole.model.context = whole.model.tokens = 8;
      const Trained expected = train(whole, kSteps);
      const auto same = [&](const char* what, auto change) {
        CAPTURE(whole.name, kv_heads, what);
        const Trained shared = train(with(whole, change), kSteps);
        check_same_model(shared, expected);
        for (size_t i = 0; i < expected.norms.size(); ++i)
          CHECK(shared.norms[i] == Approx(expected.norms[i]).epsilon(kTolerance));
      };
      for (const bool sequence : {false, true}) {
        for (const int tensor : {2, 4})
          same("tensor", [&](Layout& l) { l.tensor = tensor, l.sequence_parallel = sequence, l.tensor_chunks = 2; });
        same("pipeline", [&](Layout& l) {
          l.tensor = 4, l.stages = 2, l.schedule = ScheduleKind::zb_h1, l.micro_batch = 2, l.micro_batches = 2;
          l.sequence_parallel = sequence;
        });
        for (const int stage : {1, 3})
          same("ZeRO", [&](Layout& l) {
            l.ranks = 2, l.tensor = 4, l.micro_batch = 1, l.micro_batches = 2, l.zero_stage = stage;
            l.sequence_parallel = sequence, l.model.split_tied_embedding = false;
          });
      }
      same("context", [](Layout& l) { l.tensor = 4, l.context = 2; });
      same("recomputation", [](Layout& l) { l.tensor = 4, l.recompute = Recomputation::full; });
    }
}

TEST_CASE("families: recomputation gives the same bits, and data ranks hold the same weights", "[families]") {
  for (const Layout& whole : families()) {
    CAPTURE(whole.name);
    const Trained expected = train(whole, kSteps);
    for (const Recomputation recompute : {Recomputation::selective, Recomputation::full})
      CHECK(train(with(whole, [&](Layout& l) { l.recompute = recompute; }), kSteps).hash == expected.hash);
    const auto two = [&](ReduceMode mode) {
      return train(with(whole, [&](Layout& l) { l.ranks = 2, l.micro_batch = 2, l.reduce_mode = mode; }), kSteps);
    };
    const Trained bucketed = two(ReduceMode::bucketed);
    CHECK(bucketed.hash == two(ReduceMode::naive).hash);
    for (const std::string& hash : bucketed.rank_hashes) CHECK(hash == bucketed.hash);
  }
}

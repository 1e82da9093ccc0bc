// SPDX-License-Identifier: Apache-2.0
// A head that computes its logits in chunks of tokens trains the model of a head that computes them at once.

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tests/equivalence/trained.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

constexpr int kSteps = 3;

Layout layout_of(bool llama) {
  return {.name = llama ? "llama" : "gpt2", .model = llama ? tiny_llama() : tiny_gpt2(), .micro_batch = 12};
}
Layout chunked(const Layout& layout, int64_t head_tokens) {
  return with(layout, [&](Layout& l) { l.head_tokens = head_tokens; });
}

int64_t logits_bytes(const Job& job) { return job.buffers[job.model.logits].size_bytes; }

/// The number of works with this name in the pieces of the head in one training micro-batch.
int works_of_head(const ModelSpec& model, const std::string& name) {
  int count = 0;
  for (const std::vector<uint32_t>* pass : {&model.forward, &model.backward})
    for (uint32_t piece : *pass)
      if (model.pieces[piece].layer == model.layers)
        count += static_cast<int>(std::count_if(model.pieces[piece].works.begin(), model.pieces[piece].works.end(),
                                                [&](const Work& work) { return work.name == name; }));
  return count;
}

struct Differences {
  double weights = 0, gradients = 0, losses = 0, norms = 0;
};
Differences differences(const Trained& a, const Trained& b) {
  Differences d{.weights = difference(a.weights, b.weights), .gradients = difference(a.gradients, b.gradients)};
  REQUIRE(a.losses.size() == b.losses.size());
  for (size_t i = 0; i < b.losses.size(); ++i) {
    d.losses = std::max(d.losses, std::abs(a.losses[i] - b.losses[i]) / b.losses[i]);
    d.norms = std::max(d.norms, std::abs(a.norms[i] - b.norms[i]) / b.norms[i]);
  }
  return d;
}

/// Only the order in which the table's gradient adds tokens differs, and the shapes of products.
void check_close(const Layout& layout, int64_t head_tokens) {
  constexpr double kTolerance = 2e-5;
  CAPTURE(layout.name, head_tokens);
  const Trained whole = train(layout, kSteps), some = train(chunked(layout, head_tokens), kSteps);
  for (const std::string& hash : some.rank_hashes) CHECK(hash == some.hash);
  const Differences d = differences(some, whole);
  std::printf("  %s, %lld tokens: weights %.1e, gradients %.1e\n", layout.name.c_str(),
              static_cast<long long>(head_tokens), d.weights, d.gradients);
  CHECK(d.weights < kTolerance);
  CHECK(d.gradients < 10 * kTolerance);
  CHECK(d.losses < kTolerance);
  CHECK(d.norms < 10 * kTolerance);
  REQUIRE(some.evaluations.size() == whole.evaluations.size());
  for (size_t i = 0; i < whole.evaluations.size(); ++i)
    CHECK(std::abs(some.evaluations[i] - whole.evaluations[i]) < kTolerance * whole.evaluations[i]);
}

}  // namespace

TEST_CASE("the logits of head_tokens tokens are in memory, in as few equal chunks as possible", "[head]") {
  for (bool llama : {false, true}) {
    const Layout layout = layout_of(llama);
    const int64_t rows = layout.micro_batch * layout.model.tokens;  // 108
    for (const auto& [head_tokens, chunks, tokens] : {std::array<int64_t, 3>{0, 1, 108},
                                                      {200, 1, 108},
                                                      {108, 1, 108},
                                                      {107, 2, 54},
                                                      {54, 2, 54},
                                                      {50, 3, 36},
                                                      {25, 5, 22},
                                                      {1, 108, 1}}) {
      CAPTURE(llama, head_tokens);
      const auto job = make_job(chunked(layout, head_tokens), 0);
      CHECK(works_of_head(job->model, "cross_entropy") == chunks);
      CHECK(logits_bytes(*job) == tokens * job->model.logits_stride * 4);
      CHECK(job->buffers[job->model.row_losses].size_bytes == rows * 4);
    }
  }
}

TEST_CASE("pieces and products of the head at once are those of one chunk", "[head]") {
  // In the last chunk of tokens, the rows of the table are completed in pieces of head_chunk_bytes; in the chunks
  // before it, one product computes all of them.
  const auto whole = make_job(layout_of(false), 0), thirds = make_job(chunked(layout_of(false), 36), 0);
  const int words = works_of_head(whole->model, "matmul_weight_gradient");
  CHECK(words > 2);
  CHECK(works_of_head(thirds->model, "matmul_weight_gradient") == words + 2);
  CHECK(works_of_head(thirds->model, "matmul_input_gradient") == 3);
  const auto flops = [](const Job& job) {
    int64_t sum = 0;
    for (const SpineItem& item : job.train().spine) sum += item.cost.flops;
    return sum;
  };
  CHECK(flops(*thirds) - flops(*whole) == 2);  // of adding the losses of three chunks
}

TEST_CASE("a head in chunks trains the same model on every layout", "[head]") {
  for (bool llama : {false, true}) {
    const Layout one = with(layout_of(llama), [](Layout& l) { l.evaluate_between = true; });
    for (int64_t head_tokens : {54, 25, 1}) check_close(one, head_tokens);
    const auto row = [&](const std::string& name, auto change) {
      Layout layout = one;
      layout.name += ", " + name;
      change(layout);
      check_close(layout, 7);
    };
    row("three ranks", [](Layout& l) { l.ranks = 3, l.micro_batch = 4; });
    row("micro-batches", [](Layout& l) { l.micro_batch = 4, l.micro_batches = 3; });
    row("an unsplit tied table",
        [](Layout& l) { l.model.tie_embeddings = true, l.model.split_tied_embedding = false; });
    row("a dense table", [](Layout& l) { l.ranks = 2, l.micro_batch = 6, l.model.vocab = 61; });
    row("contexts", [](Layout& l) { l.context = 2, l.model.tokens = l.model.context = 8; });
    row("recomputation", [](Layout& l) { l.recompute = Recomputation::full; });
    row("update after the step", [](Layout& l) { l.optimizer_per_bucket = false; });
    for (int stage : {1, 2, 3})
      row("zero " + std::to_string(stage), [&](Layout& l) {
        l.ranks = 2, l.micro_batch = 3, l.micro_batches = 2, l.zero_stage = stage, l.model.split_tied_embedding = false;
      });
    for (ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zb_h1})
      row(std::string("pipeline ") + name_of(kind), [&](Layout& l) {
        l.stages = 2, l.micro_batch = 3, l.micro_batches = 4, l.schedule = kind, l.layers = {1, 1};
      });
    row("a last stage with the head alone", [](Layout& l) {
      l.stages = 2, l.micro_batch = 6, l.micro_batches = 2, l.layers = {2, 0};
    });
  }
}

TEST_CASE("chunks without effect: shared vocabularies and delayed weight gradients keep all logits", "[head]") {
  for (const Layout& whole :
       {with(layout_of(false), [](Layout& l) { l.tensor = 2; }), with(layout_of(false), [](Layout& l) {
          l.stages = 2, l.micro_batches = 2, l.schedule = ScheduleKind::zb_h1, l.layers = {1, 1};
        })}) {
    const int last = whole.world() - 1;
    CHECK(logits_bytes(*make_job(chunked(whole, 7), last)) == logits_bytes(*make_job(whole, last)));
    CHECK(train(chunked(whole, 7), kSteps).hash == train(whole, kSteps).hash);
  }
}

TEST_CASE("reduce modes, delays and stages of ZeRO do not change the bits of a head in chunks", "[head]") {
  for (bool llama : {false, true}) {
    const Layout two = chunked(
        with(layout_of(llama), [](Layout& l) { l.ranks = 2, l.micro_batch = 6, l.model.split_tied_embedding = false; }),
        10);
    const Trained trained = train(two, kSteps);
    for (const ReduceMode mode : {ReduceMode::naive, ReduceMode::flat, ReduceMode::per_parameter})
      CHECK(train(with(two, [&](Layout& l) { l.reduce_mode = mode; }), kSteps).hash == trained.hash);
    for (const uint64_t seed : {uint64_t{3}, uint64_t{4}})
      CHECK(train(with(two, [&](Layout& l) { l.delay_seed = seed; }), kSteps).hash == trained.hash);
    for (int stage : {1, 2, 3})
      CHECK(train(with(two, [&](Layout& l) { l.zero_stage = stage; }), kSteps).hash == trained.hash);
  }
}

TEST_CASE("the comparison sees a chunk whose gradient or loss is lost", "[head]") {
  const Layout some = chunked(with(layout_of(true), [](Layout& l) { l.max_norm = 0; }), 54);
  const Trained whole = train(chunked(some, 0), kSteps);
  for (const std::string name : {"matmul_weight_gradient", "matmul_input_gradient", "cross_entropy", "add_loss"}) {
    const Layout wrong = with(some, [&](Layout& l) {
      l.change_model = [=](ModelSpec& model) {
        for (Piece& piece : model.pieces)
          if (piece.name == "head.0")
            for (Work& work : piece.works)
              if (work.name == name) work.fn = [](LaunchContext&) {};
      };
    });
    CAPTURE(name);
    const Differences d = differences(train(wrong, kSteps), whole);
    std::printf("  without %s: weights %.1e, losses %.1e\n", name.c_str(), d.weights, d.losses);
    CHECK(std::max(d.weights, d.losses) > 1e-3);
  }
}

// SPDX-License-Identifier: Apache-2.0
// Every layout trains the same model: each row names its reference row and the tolerance.

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/base/philox.h"
#include "tests/equivalence/trained.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

constexpr int kSteps = 4;

Layout gpt2(int ranks) { return {.name = "gpt2", .model = tiny_gpt2(), .ranks = ranks, .micro_batch = 12 / ranks}; }
Layout gpt2_dense(int ranks) {
  Layout layout = gpt2(ranks);
  layout.model.vocab = 61;  // fewer rows than a micro-batch has tokens: the dense table travels
  layout.micro_batch = 8;
  return layout;
}
Layout llama(int ranks) { return {.name = "llama", .model = tiny_llama(), .ranks = ranks, .micro_batch = 12 / ranks}; }

void check_ranks_agree(const Trained& trained) {
  for (const std::string& hash : trained.rank_hashes) CHECK(hash == trained.hash);
}

void check_same_bits(const Trained& a, const Trained& b) {
  CHECK(a.hash == b.hash);
  CHECK(a.losses == b.losses);
  CHECK(a.norms == b.norms);
  check_ranks_agree(a);
}

void check_close(const Trained& a, const Trained& b, double tolerance) {
  check_ranks_agree(a);
  const double weights = difference(a.weights, b.weights), gradients = difference(a.gradients, b.gradients);
  std::printf("    weights %.1e, gradients %.1e of %.0e\n", weights, gradients, tolerance);
  CHECK(weights < tolerance);
  CHECK(gradients < 10 * tolerance);
  for (size_t i = 0; i < b.losses.size(); ++i) {
    CHECK(std::abs(a.losses[i] - b.losses[i]) < tolerance * b.losses[i]);
    CHECK(std::abs(a.norms[i] - b.norms[i]) <= 10 * tolerance * b.norms[i]);
  }
}

/// The norm is a sum in double over shards; the update uses it after one rounding to float.
void check_same_weights(const Trained& a, const Trained& b) {
  CHECK(a.hash == b.hash);
  CHECK(a.losses == b.losses);
  REQUIRE(a.norms.size() == b.norms.size());
  for (size_t i = 0; i < a.norms.size(); ++i) CHECK(std::abs(a.norms[i] - b.norms[i]) <= 1e-13 * b.norms[i]);
  check_ranks_agree(a);
}

}  // namespace

TEST_CASE("the embedding's share travels as rows or dense, by its size", "[equivalence]") {
  CHECK(make_job(gpt2(3), 0)->model.tied.as_rows);
  CHECK(!make_job(gpt2_dense(3), 0)->model.tied.as_rows);
  CHECK(make_job(gpt2_dense(3), 0)->model.tied.split);
  CHECK(!make_job(llama(3), 0)->model.tied.split);
}

TEST_CASE("more ranks train the same model", "[equivalence]") {
  // Sums over rows are grouped by rank: float rounding, a few times 2^-24 each; a gradient summed over ranks instead of
  // averaged is off by a factor, and so are the clipped weights.
  for (const auto& make : {gpt2, llama}) {
    const Trained one = train(make(1), kSteps);
    REQUIRE(one.losses.size() == kSteps);
    for (int ranks : {2, 3, 4}) {
      const Layout layout = make(ranks);
      std::printf("  %s, %d ranks against 1\n", layout.name.c_str(), ranks);
      const Trained many = train(layout, kSteps);
      CHECK(many.rank_hashes.size() == static_cast<size_t>(ranks));
      check_close(many, one, 2e-5);
    }
    // The mutation: every rank takes the mean over its own tokens only. Gradients are not clipped, so that the scale
    // shows.
    const Layout unclipped = with(make(1), [](Layout& l) { l.max_norm = 0; });
    Layout wrong = with(make(2), [](Layout& l) { l.max_norm = 0; });
    wrong.mean_over_tokens = wrong.micro_batch * wrong.model.tokens;
    CHECK(difference(train(wrong, kSteps).weights, train(unclipped, kSteps).weights) > 2e-3);
  }
}

TEST_CASE("the four reduce modes give the same bits", "[equivalence]") {
  for (const auto& make : {gpt2, gpt2_dense, llama})
    for (int ranks : {3, 4}) {
      const Layout base = make(ranks);
      const Trained bucketed = train(base, kSteps);
      for (ReduceMode reduce_mode : {ReduceMode::naive, ReduceMode::flat, ReduceMode::per_parameter}) {
        INFO(base.name << " " << ranks << " ranks, vocabulary " << base.model.vocab << ", " << name_of(reduce_mode));
        check_same_bits(train(with(base, [&](Layout& l) { l.reduce_mode = reduce_mode; }), kSteps), bucketed);
      }
    }
}

TEST_CASE("bucket sizes do not change bits", "[equivalence]") {
  for (const auto& make : {gpt2, llama}) {
    const Trained base = train(make(3), kSteps);
    for (int64_t bytes : {1, 1000, 20 << 10, 25 << 20})
      for (int64_t first : {1, 30 << 10}) {
        INFO(bytes << " " << first);
        check_same_bits(train(with(make(3),
                                   [&](Layout& l) {
                                     l.bucket_bytes = bytes;
                                     l.first_bucket_bytes = first;
                                   }),
                              kSteps),
                        base);
      }
    // Pieces of the head's gradient are products of another shape, which may add in another order.
    check_close(train(with(make(3), [](Layout& l) { l.head_chunk_bytes = 25 << 20; }), kSteps), base, 2e-5);
  }
}

TEST_CASE("settings that change only timing do not change bits", "[equivalence]") {
  for (const auto& make : {gpt2, gpt2_dense, llama}) {
    const Layout base = make(3);
    const Trained expected = train(base, kSteps);
    SECTION(base.name + std::to_string(base.model.vocab)) {
      INFO("again");
      check_same_bits(train(base, kSteps), expected);
      INFO("one update at the end");
      check_same_bits(train(with(base, [](Layout& l) { l.optimizer_per_bucket = false; }), kSteps), expected);
      INFO("update on a stream of its own");
      check_same_bits(train(with(base, [](Layout& l) { l.update_on_spine = false; }), kSteps), expected);
      INFO("both");
      check_same_bits(train(with(base, [](Layout& l) { l.update_on_spine = l.optimizer_per_bucket = false; }), kSteps),
                      expected);
      INFO("two threads");
      check_same_bits(train(with(base, [](Layout& l) { l.threads = 2; }), kSteps), expected);
      INFO("evaluations between steps");
      const Trained evaluated = train(with(base, [](Layout& l) { l.evaluate_between = true; }), kSteps);
      check_same_bits(evaluated, expected);
      CHECK(evaluated.evaluations.size() == kSteps);
    }
  }
}

TEST_CASE("settings that change only timing do not change bits without clipping", "[equivalence]") {
  for (const auto& make : {gpt2, llama}) {
    const Layout base = with(make(3), [](Layout& l) { l.max_norm = 0; });
    const Trained expected = train(base, kSteps);
    CHECK(expected.norms == std::vector<double>(kSteps, 0.0));
    check_same_bits(train(with(base, [](Layout& l) { l.optimizer_per_bucket = false; }), kSteps), expected);
    check_same_bits(train(with(base, [](Layout& l) { l.update_on_spine = false; }), kSteps), expected);
    check_same_bits(train(with(base, [](Layout& l) { l.update_on_spine = l.optimizer_per_bucket = false; }), kSteps),
                    expected);
    check_same_bits(train(with(base, [](Layout& l) { l.reduce_mode = ReduceMode::flat; }), kSteps), expected);
    // The other control: clipping at 0.5 changes these gradients.
    CHECK(train(make(3), kSteps).hash != expected.hash);
    // A factor of 1 has no effect.
    CHECK(train(with(make(3), [](Layout& l) { l.max_norm = 1e9f; }), kSteps).hash == expected.hash);
  }
}

TEST_CASE("random delays in all streams do not change bits", "[equivalence]") {
  for (const auto& make : {gpt2, llama})
    for (bool on_spine : {true, false}) {
      const Layout base = with(make(3), [&](Layout& l) { l.update_on_spine = on_spine; });
      const Trained expected = train(base, kSteps);
      for (uint64_t seed : {11, 222, 3333}) {
        INFO("delay seed " << seed << ", update on spine " << on_spine);
        check_same_bits(train(with(base, [&](Layout& l) { l.delay_seed = seed; }), kSteps), expected);
      }
      const Layout both = with(base, [](Layout& l) {
        l.delay_seed = 77;
        l.evaluate_between = true;
        l.reduce_mode = ReduceMode::per_parameter;
      });
      check_same_bits(train(both, kSteps), expected);
    }
}

TEST_CASE("any mixture of settings gives the same bits", "[equivalence]") {
  const uint64_t seed = 20261;
  std::printf("  seed %llu\n", static_cast<unsigned long long>(seed));
  const Philox random(seed, "mixtures");
  uint64_t drawn = 0;
  const auto draw = [&](uint64_t bound) { return random.below(drawn++, bound); };
  for (int round = 0; round < 8; ++round) {
    Layout base = (draw(3) == 0 ? gpt2 : draw(2) == 0 ? gpt2_dense : llama)(2 + static_cast<int>(draw(3)));
    if (draw(2) == 0) base.max_norm = 0;
    if (draw(3) == 0) base.wire_dtype = DType::bf16;
    if (draw(3) == 0) base.model.dtype = DType::bf16;
    if (draw(3) == 0) base.model.tie_embeddings = !base.model.tie_embeddings;
    if (base.micro_batch % 2 == 0 && draw(2) == 0) base.micro_batch /= base.micro_batches = 2;
    const Trained expected = train(base, kSteps);
    for (int mixture = 0; mixture < 4; ++mixture) {
      Layout mixed = base;
      mixed.reduce_mode = static_cast<ReduceMode>(draw(4));
      mixed.bucket_bytes = static_cast<int64_t>(1 + draw(30'000));
      mixed.first_bucket_bytes = static_cast<int64_t>(1 + draw(30'000));
      mixed.optimizer_per_bucket = draw(2) == 0;
      mixed.update_on_spine = draw(2) == 0;
      mixed.threads = 1 + static_cast<int>(draw(2));
      mixed.delay_seed = draw(2) * draw(1000);
      mixed.evaluate_between = draw(3) == 0;
      INFO("round " << round << ": " << base.name << ", vocabulary " << base.model.vocab << ", " << base.ranks
                    << " ranks, clip " << base.max_norm << ", " << base.micro_batches << " micro-batches; mixture "
                    << mixture << ": " << name_of(mixed.reduce_mode) << ", buckets " << mixed.first_bucket_bytes
                    << " and " << mixed.bucket_bytes << ", per bucket " << mixed.optimizer_per_bucket << ", on spine "
                    << mixed.update_on_spine << ", threads " << mixed.threads << ", delays " << mixed.delay_seed
                    << ", evaluations " << mixed.evaluate_between);
      check_same_bits(train(mixed, kSteps), expected);
    }
  }
}

TEST_CASE("sharding optimizer, gradients and parameters gives the bits of data parallelism", "[equivalence][zero]") {
  // One micro-batch per rank: every sum has the order of stage 0. The tied table is not split, because shards keep its
  // two shares together.
  for (const auto& make : {gpt2, llama})
    for (int ranks : {2, 3, 4}) {
      const auto unsplit = with(make(ranks), [](Layout& l) { l.model.split_tied_embedding = false; });
      const Trained whole = train(unsplit, kSteps);
      for (int stage : {1, 2, 3})
        for (int depth : {0, 1, 2}) {
          if (stage < 3 && depth != 1) continue;
          CAPTURE(ranks, stage, depth);
          const Layout sharded = with(unsplit, [&](Layout& l) {
            l.zero_stage = stage;
            l.prefetch_depth = depth;
            l.evaluate_between = stage == 3;
          });
          check_same_weights(train(sharded, kSteps), whole);
        }
    }
}

TEST_CASE("sharding gives the same bits under random delays and without clipping", "[equivalence][zero]") {
  const auto unsplit = with(gpt2(3), [](Layout& l) { l.model.split_tied_embedding = false, l.max_norm = 0; });
  const Trained whole = train(unsplit, kSteps);
  for (uint64_t seed : {1, 2, 3}) {
    CAPTURE(seed);
    check_same_weights(
        train(with(unsplit, [&](Layout& l) { l.zero_stage = static_cast<int>(seed), l.delay_seed = seed; }), kSteps),
        whole);
  }
}

TEST_CASE("sharded gradients of several micro-batches are the same mean", "[equivalence][zero]") {
  // Stage 1 accumulates as stage 0 does. Stages 2 and 3 add over ranks first and over micro-batches second, which is
  // another order.
  const auto unsplit =
      with(gpt2(3), [](Layout& l) { l.model.split_tied_embedding = false, l.micro_batch = 2, l.micro_batches = 2; });
  const Trained whole = train(unsplit, kSteps);
  check_same_weights(train(with(unsplit, [](Layout& l) { l.zero_stage = 1; }), kSteps), whole);
  for (int stage : {2, 3}) {
    CAPTURE(stage);
    check_close(train(with(unsplit, [&](Layout& l) { l.zero_stage = stage; }), kSteps), whole, 2e-5);
  }
}

TEST_CASE("gradients that stay whole until the last micro-batch add in the order of stage 0", "[equivalence][zero]") {
  for (const auto& make : {gpt2, llama})
    for (int micro_batches : {2, 4}) {
      const auto unsplit = with(make(3), [&](Layout& l) {
        l.model.split_tied_embedding = false, l.micro_batch /= micro_batches, l.micro_batches = micro_batches;
      });
      check_same_weights(
          train(with(unsplit, [](Layout& l) { l.zero_stage = 2, l.accumulate_unsharded = true; }), kSteps),
          train(unsplit, kSteps));
    }
}

TEST_CASE("layers that are kept after forward are gathered once in a step, whatever the micro-batches",
          "[equivalence][zero]") {
  for (int micro_batches : {1, 2}) {
    const auto base = with(llama(2), [&](Layout& l) {
      l.zero_stage = 3, l.micro_batch /= micro_batches, l.micro_batches = micro_batches, l.prefetch_depth = 0;
    });
    const auto kept = with(base, [](Layout& l) { l.reshard_after_forward = false; });
    const auto gathers = [](const Layout& layout) {
      const auto job = make_job(layout, 0);
      return std::count_if(job->train().tasks.begin(), job->train().tasks.end(),
                           [](const Task& t) { return t.name.starts_with("all_gather.layer"); });
    };
    // Two layers and one slot: forward 0, 1, backward 0, and the next micro-batch begins with the resident layer.
    CHECK(gathers(base) == 1 + 2 * micro_batches);
    CHECK(gathers(kept) == 2);
    check_same_bits(train(kept, kSteps), train(base, kSteps));
    check_same_bits(train(with(kept, [](Layout& l) { l.delay_seed = 8, l.evaluate_between = true; }), kSteps),
                    train(base, kSteps));
  }
}

TEST_CASE("hybrid sharding: groups that share, and a sum across them, train the same model", "[equivalence][zero]") {
  // Sums inside a group come before sums across groups: with 2 x 2 ranks the order is another one, (a + b) + (c + d).
  struct Row {
    int ranks, group, micro_batches;
  };
  for (const auto& make : {gpt2, llama})
    for (int stage : {1, 2, 3})
      for (const Row& row : {Row{4, 2, 1}, Row{4, 2, 3}, Row{6, 2, 1}, Row{6, 3, 2}}) {
        CAPTURE(stage, row.ranks, row.group, row.micro_batches);
        const auto unsplit = with(make(row.ranks), [&](Layout& l) {
          l.model.split_tied_embedding = false;
          l.micro_batch = 12 / row.ranks / row.micro_batches, l.micro_batches = row.micro_batches;
        });
        const auto hybrid = with(unsplit, [&](Layout& l) { l.zero_stage = stage, l.shard_size = row.group; });
        const Trained whole = train(unsplit, kSteps), trained = train(hybrid, kSteps);
        std::printf("  %s, stage %d in groups of %d of %d ranks, %d micro-batches\n", hybrid.name.c_str(), stage,
                    row.group, row.ranks, row.micro_batches);
        check_close(trained, whole, 2e-5);
        const bool alone = row.micro_batches == 3;  // one bucket at a time, too
        check_same_bits(
            train(with(hybrid, [&](Layout& l) { l.delay_seed = 4, l.max_inflight_buckets = alone ? 1 : 0; }), kSteps),
            trained);
        // One group of all ranks is no grouping, and groups of one rank are data parallelism.
        CHECK(train(with(hybrid, [&](Layout& l) { l.shard_size = row.ranks; }), kSteps).hash ==
              train(with(hybrid, [](Layout& l) { l.shard_size = 0; }), kSteps).hash);
        CHECK(train(with(hybrid, [](Layout& l) { l.shard_size = 1; }), kSteps).hash == whole.hash);
      }
}

TEST_CASE("gradient accumulation is the same mean", "[equivalence]") {
  for (const auto& make : {gpt2, gpt2_dense, llama}) {
    const Layout whole = make(2);
    const Trained expected = train(whole, kSteps);
    for (int parts : {2, whole.micro_batch % 4 == 0 ? 4 : 3}) {
      const Layout cut = with(whole, [&](Layout& l) {
        l.micro_batches = parts;
        l.micro_batch /= parts;
      });
      std::printf("  %s %lld, %d micro-batches against 1\n", cut.name.c_str(), static_cast<long long>(cut.model.vocab),
                  parts);
      const Trained accumulated = train(cut, kSteps);
      check_close(accumulated, expected, 2e-5);
      // The reduce modes still give the same bits as each other.
      check_same_bits(train(with(cut, [](Layout& l) { l.reduce_mode = ReduceMode::naive; }), kSteps), accumulated);
      check_same_bits(train(with(cut, [](Layout& l) { l.delay_seed = 5; }), kSteps), accumulated);
    }
  }
}

TEST_CASE("a split tied embedding has the gradient of an unsplit one", "[equivalence]") {
  for (const auto& make : {gpt2, gpt2_dense}) {
    const auto unsplit = [](Layout& l) { l.model.split_tied_embedding = false; };
    for (int ranks : {1, 3}) {
      std::printf("  vocabulary %lld, %d ranks, split against unsplit\n",
                  static_cast<long long>(make(ranks).model.vocab), ranks);
      check_close(train(make(ranks), kSteps), train(with(make(ranks), unsplit), kSteps), 2e-5);
    }
    const Trained expected = train(with(make(3), unsplit), kSteps);
    check_same_bits(train(with(make(3), [&](Layout& l) { unsplit(l), l.reduce_mode = ReduceMode::naive; }), kSteps),
                    expected);
    check_same_bits(train(with(make(3), [&](Layout& l) { unsplit(l), l.bucket_bytes = 1 << 20; }), kSteps), expected);
  }
}

TEST_CASE("the ring adds in another order and trains the same model", "[equivalence]") {
  const Trained direct = train(llama(3), kSteps);
  const Layout ring = with(llama(3), [](Layout& l) { l.algorithm = Algorithm::ring; });
  check_close(train(ring, kSteps), direct, 2e-5);
  check_same_bits(train(with(ring, [](Layout& l) { l.delay_seed = 9; }), kSteps), train(ring, kSteps));
}

TEST_CASE("bfloat16 on the wire rounds gradients once", "[equivalence]") {
  // 8 bits of mantissa: 2^-8 for each addend and for the sum; a cast into the wrong half would be off by 1.
  for (const auto& make : {gpt2, llama}) {
    const auto bf16 = [](Layout& l) { l.wire_dtype = DType::bf16; };
    const Trained exact = train(make(3), 1), rounded = train(with(make(3), bf16), 1);
    check_ranks_agree(rounded);
    CHECK(rounded.losses == exact.losses);
    CHECK(difference(rounded.gradients, exact.gradients) < 0x1p-6);
    CHECK(difference(rounded.gradients, exact.gradients) > 0x1p-12);
    CHECK(difference(train(with(make(3), bf16), kSteps).weights, train(make(3), kSteps).weights) < 0x1p-6);
    check_same_bits(train(with(make(3), [&](Layout& l) { bf16(l), l.reduce_mode = ReduceMode::flat; }), kSteps),
                    train(with(make(3), bf16), kSteps));
  }
}

TEST_CASE("training in bfloat16 runs and its loss falls", "[equivalence]") {
  for (const auto& make : {gpt2, llama}) {
    const Layout layout = with(make(2), [](Layout& l) {
      l.model.dtype = DType::bf16;
      l.same_batch = true;
      l.learning_rate = 3e-3f;
      l.eps = 1e-8f;
      l.max_norm = 1;
    });
    const Trained bf16 = train(layout, 30);
    const Trained f32 = train(with(layout, [](Layout& l) { l.model.dtype = DType::f32; }), 30);
    std::printf("  %s: loss %.3f -> %.3f in bfloat16, %.3f -> %.3f in float32\n", layout.name.c_str(),
                bf16.losses.front(), bf16.losses.back(), f32.losses.front(), f32.losses.back());
    CHECK(bf16.losses.back() < 0.8 * bf16.losses.front());
    CHECK(std::abs(bf16.losses.front() - f32.losses.front()) < 0.01 * f32.losses.front());
    CHECK(std::abs(bf16.losses.back() - f32.losses.back()) < 0.1 * f32.losses.back());
    check_same_bits(train(with(layout, [](Layout& l) { l.reduce_mode = ReduceMode::naive; }), 5), train(layout, 5));
  }
}

TEST_CASE("the control: adding ranks in reverse order changes the bits", "[equivalence]") {
  // Otherwise the table could compare a hash that is constant.
  for (const auto& make : {gpt2_dense, llama})
    for (int ranks : {3, 4}) {
      const Trained forward = train(make(ranks), kSteps);
      const Trained backward = train(with(make(ranks), [](Layout& l) { l.reverse_ranks = true; }), kSteps);
      check_ranks_agree(backward);
      CHECK(backward.hash != forward.hash);
      CHECK(difference(backward.weights, forward.weights) < 2e-5);
    }
  // Two addends commute, so two ranks have the same bits.
  CHECK(train(with(llama(2), [](Layout& l) { l.reverse_ranks = true; }), kSteps).hash == train(llama(2), kSteps).hash);
}

TEST_CASE("updates that wait for the embedding's share come after the others", "[equivalence]") {
  // The share arrives last: a norm or an update of another bucket after it would wait for nothing.
  for (float max_norm : {0.0f, 1.0f}) {
    const auto job = make_job(with(gpt2(3), [&](Layout& l) { l.max_norm = max_norm; }), 0);
    bool added = false;
    int before = 0, after = 0;
    for (const SpineItem& item : job->train().spine) {
      if (item.op == Op::add_rows) added = true;
      if (item.op == (max_norm > 0 ? Op::sum_squares : Op::update)) ++(added ? after : before);
    }
    CHECK(added);
    CHECK(before > after);
  }
}

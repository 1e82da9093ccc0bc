// SPDX-License-Identifier: Apache-2.0
// Published bugs of other engines in the overlap of ZeRO, as laws of this engine.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "engine/base/check.h"
#include "tests/equivalence/table.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

constexpr int kSteps = 3;

Layout zero(int stage, Family family = Family::gpt2) {
  Layout layout{.name = "peers",
                .model = smallest(family),
                .ranks = 2,
                .micro_batch = 2,
                .bucket_bytes = 512,
                .first_bucket_bytes = 256};
  layout.model.split_tied_embedding = false;
  layout.zero_stage = stage;
  return layout;
}

std::string refusal(const Layout& layout) {
  try {
    train(layout, kSteps);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a gather that does not wait for the optimizer is found, whether it waits in its step or in the next",
          "[peers]") {
  // In Megatron-LM, parameters were gathered before their update, and the model trained on stale weights.
  for (int stage : {1, 3}) {
    Layout mutant = zero(stage);
    mutant.update_on_spine = false;
    int deleted = 0;
    mutant.mutate = [&](Job& job) {
      for (ItemId i = 0; i < job.train().size(); ++i)
        if (job.train()[i].op == Op::all_gather)
          deleted += static_cast<int>(std::erase_if(
              job.train()[i].after, [&](const Point& p) { return job.train()[p.item].op == Op::update; }));
    };
    const std::string text = refusal(mutant);
    INFO(text);
    CHECK(deleted > 0);
    CHECK(text.find("[hazard] all_gather.bucket") == 0);
    CHECK(text.find("while adamw") != std::string::npos);
  }
}

TEST_CASE("the order in which parameters are registered does not matter", "[peers]") {
  // In Megatron-LM 663 and 950, buckets followed the order of registration and gathers followed the buckets, but
  // forward did not.
  for (int stage : {0, 1, 2, 3}) {
    const Layout layout = zero(stage);
    Layout reversed = layout;
    reversed.change_model = [](ModelSpec& model) {
      const auto last = static_cast<uint32_t>(model.parameters.size() - 1);
      std::reverse(model.parameters.begin(), model.parameters.end());
      for (Piece& piece : model.pieces)
        for (GradientPart& part : piece.ready) part.parameter = last - part.parameter;
      model.tied.parameter = last - model.tied.parameter;
    };
    CHECK(train(reversed, kSteps).hash == train(layout, kSteps).hash);
  }
}

TEST_CASE("a gradient that becomes ready twice is refused, and so is one that never does", "[peers]") {
  // The case: the second share of a tied weight arrives after the reduction has begun.
  Layout twice = zero(1), never = zero(1);
  twice.change_model = [](ModelSpec& model) {
    for (uint32_t piece : model.backward)
      if (!model.pieces[piece].ready.empty()) {
        model.pieces[model.backward.back()].ready.push_back(model.pieces[piece].ready.front());
        return;
      }
  };
  never.change_model = [](ModelSpec& model) {
    for (uint32_t piece : model.backward)
      if (!model.pieces[piece].ready.empty()) {
        model.pieces[piece].ready.clear();
        return;
      }
  };
  CHECK(refusal(twice).find("becomes ready") != std::string::npos);
  CHECK(refusal(never).find("ever become ready") != std::string::npos);
}

TEST_CASE("a rank with more micro-batches has another plan, which is compared before the first step", "[peers]") {
  // In DeepSpeed 5066, ranks with different numbers of batches hang in ZeRO-3.
  for (int stage : {0, 3}) {
    Layout more = zero(stage);
    more.micro_batches = 2;
    const auto a = make_job(zero(stage), 0), b = make_job(zero(stage), 1), c = make_job(more, 1);
    const auto hash = [](const Job& job) {
      const Plan* only = &job.train();
      return comm::order_hash({&only, 1});
    };
    CHECK(hash(*a) == hash(*b));
    CHECK(hash(*a) != hash(*c));
  }
}

TEST_CASE("buckets that end unevenly, and buckets whose last shards are padding alone", "[peers]") {
  // Megatron-LM 558 is about bucket ranges with many ranks. Here a norm of 8 elements is a bucket of 1 byte or more on
  // 4 ranks.
  for (Family family : {Family::gpt2, Family::llama}) {
    Layout whole = zero(0, family);
    whole.ranks = 4;
    const std::string expected = train(whole, kSteps).hash;
    for (int stage : {1, 2, 3})
      for (int64_t bytes : {1, 100, 777, 1 << 20}) {
        CAPTURE(stage, bytes);
        Layout layout = whole;
        layout.zero_stage = stage;
        layout.bucket_bytes = layout.first_bucket_bytes = bytes;
        CHECK(train(layout, kSteps).hash == expected);
        if (stage > 1 || bytes > 1) continue;
        const auto job = make_job(layout, 3);
        int64_t smallest_part = job->model.parameters[0].elems;
        for (const ParameterSpec& parameter : job->model.parameters)
          smallest_part = std::min(smallest_part, parameter.elems);
        // The last rank's shard of the smallest bucket is only padding.
        CHECK(smallest_part <= 3 * 16);
      }
  }
}

TEST_CASE("buckets of fewer elements than there are ranks train the model of one rank, in every stage and format",
          "[peers]") {
  constexpr int kRanks = 9;
  for (Family family : {Family::gpt2, Family::llama}) {
    Layout whole = zero(0, family);
    whole.model.heads = whole.model.kv_heads = 1, whole.model.width = 2;  // a norm has 2 elements
    whole.ranks = kRanks, whole.micro_batch = 2;
    whole.bucket_bytes = whole.first_bucket_bytes = 1;
    const Trained expected = train(whole, kSteps);
    const Trained one = train(with(whole, [](Layout& l) { l.ranks = 1, l.micro_batch = 2 * kRanks; }), kSteps);
    CHECK(difference(expected.weights, one.weights) < 2e-5);
    for (int stage : {1, 2, 3}) {
      CAPTURE(family, stage);
      Layout layout = whole;
      layout.zero_stage = stage;
      const auto job = make_job(layout, kRanks - 1);
      int small = 0;
      for (const Bucket& bucket : job->layout.buckets) {
        int64_t elems = 0;
        for (uint32_t p = bucket.first_part; p < bucket.first_part + bucket.part_count; ++p)
          elems += job->layout.parts[p].part.elems;
        small += elems < kRanks;
      }
      CHECK(small > 0);
      const Trained trained = train(layout, kSteps);
      CHECK(trained.rank_hashes == std::vector<std::string>(kRanks, expected.hash));
      CHECK(trained.losses == expected.losses);
      const Trained groups = train(with(layout, [](Layout& l) { l.shard_size = 3; }), kSteps);
      CHECK(groups.rank_hashes == std::vector<std::string>(kRanks, groups.hash));
      CHECK(difference(groups.weights, one.weights) < 2e-5);
      for (Format wire : {Format(DType::bf16), kInt8}) {
        const Trained encoded =
            train(with(layout, [&](Layout& l) { l.wire_dtype = wire, l.gather_dtype = wire; }), kSteps);
        CHECK(encoded.rank_hashes == std::vector<std::string>(kRanks, encoded.hash));
        CHECK(difference(encoded.weights, one.weights) < (wire == DType::bf16 ? 3e-2 : 1e-1));
      }
    }
  }
}

TEST_CASE(
    "small and uneven buckets travel encoded too: every rank has the same weights, and bfloat16 the same bits in every "
    "cut",
    "[peers]") {
  for (Family family : {Family::gpt2, Family::llama})
    for (Format wire : {Format(DType::bf16), kInt8})
      for (int stage : {1, 3}) {
        std::string expected;
        for (int64_t bytes : {1, 777, 1 << 20}) {
          CAPTURE(stage, bytes, name_of(wire));
          Layout layout = zero(stage, family);
          layout.ranks = 4;
          layout.wire_dtype = wire;
          layout.gather_dtype = wire;
          layout.bucket_bytes = layout.first_bucket_bytes = bytes;
          const Trained trained = train(layout, kSteps);
          for (const std::string& hash : trained.rank_hashes) CHECK(hash == trained.hash);
          if (wire == DType::bf16) CHECK((expected.empty() || expected == trained.hash));
          expected = trained.hash;
        }
      }
}

TEST_CASE("a rank that computes with one other weight has another hash, in every step and after the last update",
          "[peers]") {
  // The control of all tests that compare rank_hashes.
  for (int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const Layout layout = zero(stage);
    const Trained good = train(layout, kSteps);
    CHECK(good.rank_hashes == std::vector<std::string>(2, good.hash));
    Layout other = layout;
    other.mutate = [](Job& job) {
      if (job.options.rank != 1) return;
      const BufferId value = job.model.parameters[0].value;
      int altered = 0;
      for (Piece& piece : job.model.pieces)
        for (Work& work : piece.works)
          for (const Slice& slice : work.reads)
            if (slice.buffer == value) {
              ++altered;
              work.fn = [fn = std::move(work.fn), slice](LaunchContext& c) {
                c.as<float>(slice)[0] += 1e-4f;
                fn(c);
              };
              break;
            }
      CHECK(altered > 0);
    };
    const Trained drifted = train(other, kSteps);
    CHECK(drifted.rank_hashes[0] == drifted.hash);
    CHECK(drifted.rank_hashes[1] != drifted.hash);
    if (stage == 3) continue;  // stage 3 holds no weights between steps
    // The changed element is one that rank 0 updates, so the masters are correct.
    other = layout;
    other.inspect = [](runtime::Rank& rank) {
      const std::vector<int64_t>& offsets = rank.job().layout.parameter_offsets;
      const auto first = static_cast<size_t>(std::find(offsets.begin(), offsets.end(), 0) - offsets.begin());
      if (rank.job().options.rank == 1) rank.write(first, 0, 0, std::vector<float>{7});
    };
    const Trained behind = train(other, kSteps);
    CHECK(behind.hash == good.hash);
    CHECK(behind.rank_hashes[0] == behind.hash);
    CHECK(behind.rank_hashes[1] != behind.hash);
  }
}

TEST_CASE("a parameter without a gradient travels like the others and keeps its value, in every stage and format",
          "[peers]") {
  // DeepSpeed and FSDP have hung on parameters that took no part. Here every part of a bucket travels; without decay
  // its values stay.
  for (int stage : {0, 1, 2, 3})
    for (Format wire : {Format(DType::f32), Format(DType::bf16), kInt8}) {
      CAPTURE(stage, name_of(wire));
      Layout layout = zero(stage);
      layout.wire_dtype = wire;
      layout.micro_batches = 2;
      std::string idle;
      layout.change_model = [&](ModelSpec& model) {
        const auto parameter = std::find_if(model.parameters.begin(), model.parameters.end(),
                                            [](const ParameterSpec& p) { return p.layer == 1 && !p.decay; });
        idle = parameter->name();
        for (Piece& piece : model.pieces)
          for (Work& work : piece.works)
            for (const Slice& slice : work.writes)
              if (slice.buffer == parameter->gradient)
                work.fn = [inner = work.fn, slice](LaunchContext& c) {
                  inner(c);
                  std::memset(c.at(slice), 0, static_cast<size_t>(slice.size_bytes));
                };
      };
      const Trained trained = train(layout, kSteps), begin = train(layout, 0);
      for (size_t t = 0; t < trained.names.size(); ++t) {
        INFO(trained.names[t]);
        if (trained.names[t] == idle)
          CHECK(trained.weights[t] == begin.weights[t]);
        else if (wire != kInt8)  // int8 rounds small gradients next to large ones to zero
          CHECK(trained.weights[t] != begin.weights[t]);
      }
    }
}

TEST_CASE("rows that get no gradient stay as they are, sharded or not", "[peers]") {
  // Positions beyond the sequence: their gradient is zero, in padding-like ranges in the middle of a bucket.
  for (int stage : {0, 1, 2, 3}) {
    Layout layout = zero(stage);
    layout.model.context = 40;
    layout.eps = 1e-8f;
    const Trained trained = train(layout, kSteps), begin = train(layout, 0);
    const auto at =
        static_cast<size_t>(std::find_if(trained.names.begin(), trained.names.end(),
                                         [](const std::string& n) { return n.find("wpe") != std::string::npos; }) -
                            trained.names.begin());
    REQUIRE(at < trained.names.size());
    for (size_t i = 0; i < trained.weights[at].size(); ++i) {
      const bool used = i < static_cast<size_t>(layout.model.tokens * layout.model.width);
      // Weight decay alone: |change| is learning rate x decay x weight in each step.
      const float before = begin.weights[at][i], after = trained.weights[at][i];
      if (!used)
        CHECK(std::abs(after - before * std::pow(1 - layout.learning_rate * 0.1f, kSteps)) <= 1e-6f * std::abs(before));
    }
  }
}

// SPDX-License-Identifier: Apache-2.0
// The loader's thread: the right tokens in the right order, clean ends, errors that propagate.

#include "engine/data/datasets/loader.h"

#include "engine/base/context_chunks.h"

#include <atomic>
#include <chrono>
#include <map>
#include <numeric>
#include <thread>

#include "engine/base/context_chunks.h"
#include "tests/engine/data/disk.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::data;
using namespace slipstream::tests;

namespace {

/// Token i is i, so a token shows its origin.
class Counting final : public TokenSource {
 public:
  explicit Counting(int64_t count) : count_(count) {}
  int64_t count() const override { return count_; }
  using TokenSource::read;
  void read(int64_t begin, std::span<int32_t> out, std::vector<int64_t>*) const override {
    REQUIRE(begin + std::ssize(out) <= count_);
    std::iota(out.begin(), out.end(), static_cast<int32_t>(begin));
  }

 private:
  int64_t count_;
};

std::shared_ptr<const TokenSource> counting(int64_t count) { return std::make_shared<Counting>(count); }

BatchFiller numbering(std::atomic<int>& filled) {
  return [&filled](int64_t index, Batch& batch) {
    std::fill(batch.inputs.begin(), batch.inputs.end(), static_cast<int32_t>(index));
    ++filled;
  };
}

}  // namespace

TEST_CASE("loader: every input knows where its document begins, on every context rank", "[data]") {
  /// Tokens are their indices; documents begin at multiples of 5.
  class Fives final : public TokenSource {
   public:
    int64_t count() const override { return 400; }
    bool has_documents() const override { return true; }
    using TokenSource::read;
    void read(int64_t begin, std::span<int32_t> out, std::vector<int64_t>* documents) const override {
      std::iota(out.begin(), out.end(), static_cast<int32_t>(begin));
      for (int64_t i = 0; documents != nullptr && i < std::ssize(out); ++i)
        if ((begin + i) % 5 == 0) documents->push_back(i);
    }
  };
  const auto source = std::make_shared<Fives>();
  const SamplerOptions options{.sequence_length = 24, .micro_batch_size = 2, .global_batch_size = 4, .seed = 1};
  const TrainSampler sampler(400, options);
  for (const int ranks : {1, 2, 3})
    for (int rank = 0; rank < ranks; ++rank) {
      const ContextChunks chunks{.tokens = 24, .ranks = ranks, .rank = rank};
      Batch batch =
          make_batch({.micro_batches = 2, .rows = 2, .sequence_length = chunks.local_tokens(), .documents = true});
      const BatchFiller fill = training_filler(source, sampler, 0, 1, rank, ranks);
      for (int64_t step = 1; step < 6; ++step) {
        fill(step, batch);
        for (size_t i = 0; i < batch.inputs.size(); ++i) {
          const int64_t position = chunks.position(static_cast<int64_t>(i) % chunks.local_tokens());
          // The window begins with its first token; the document of that token began there or before.
          const int64_t first = batch.inputs[i] - position;
          CHECK(batch.document_begins[i] == std::max<int64_t>(0, batch.inputs[i] / 5 * 5 - first));
        }
      }
    }
  CHECK(make_batch({.micro_batches = 1, .rows = 2, .sequence_length = 3}).document_begins.empty());
}

TEST_CASE("loader: a step's rows over all ranks are the sampler's windows, with targets one token later", "[data]") {
  constexpr int32_t kCount = 3001;
  const auto source = counting(kCount);
  for (const int64_t ranks : {1, 2, 3}) {
    const TrainSampler sampler(kCount,
                               {.sequence_length = 7, .micro_batch_size = 2, .global_batch_size = 12, .seed = 3});
    const BatchShape shape{.micro_batches = sampler.micro_batches(ranks), .rows = 2, .sequence_length = 7};
    std::map<int64_t, std::vector<int64_t>> begins;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      Loader loader(training_filler(source, sampler, rank, ranks), {.shape = shape, .first = 30, .last = 80});
      for (int64_t step = 30; step <= 80; ++step) {
        const Batch& batch = loader.next();
        REQUIRE(batch.index == step);
        for (int64_t micro = 0; micro < shape.micro_batches; ++micro)
          for (int64_t row = 0; row < 2; ++row) {
            const int32_t* inputs = batch.inputs_of(micro) + row * 7;
            const int32_t* targets = batch.targets_of(micro) + row * 7;
            for (int t = 0; t < 7; ++t)
              if (inputs[t] != inputs[0] + t || targets[t] != inputs[t] + 1) FAIL("step " << step);
            begins[step].push_back(inputs[0]);
          }
        CHECK(batch.valid_rows == std::vector<int64_t>(static_cast<size_t>(shape.micro_batches), 2));
        // The rows are those of the step, in order: the numbers are positions in `begins`.
        for (int64_t micro = 0; micro < shape.micro_batches; ++micro)
          CHECK(batch.first_rows[static_cast<size_t>(micro)] == (rank * shape.micro_batches + micro) * 2);
      }
      CHECK_REFUSED(InternalError, loader.next(), "assertion failed");
    }
    for (const auto& [step, rows] : begins) {
      REQUIRE(rows.size() == 12);
      for (size_t i = 0; i < 12; ++i) CHECK(rows[i] == sampler.begin_of(static_cast<uint64_t>((step - 1) * 12) + i));
    }
  }
}

TEST_CASE("loader: ranks that share sequences load their chunks, and together every token once", "[data]") {
  constexpr int32_t kCount = 3001;
  const auto source = counting(kCount);
  const TrainSampler sampler(kCount, {.sequence_length = 12, .micro_batch_size = 2, .global_batch_size = 4, .seed = 3});
  for (const int context : {1, 2, 3}) {
    std::map<int32_t, int> seen;
    for (int rank = 0; rank < context; ++rank) {
      const ContextChunks chunks{.tokens = 12, .ranks = context, .rank = rank};
      const int64_t length = chunks.local_tokens();
      const BatchShape shape{.micro_batches = 1, .rows = 2, .sequence_length = length};
      Loader loader(training_filler(source, sampler, 1, 2, rank, context), {.shape = shape, .first = 5, .last = 5});
      const Batch& batch = loader.next();
      for (int64_t row = 0; row < 2; ++row) {
        const auto begin =
            static_cast<int32_t>(sampler.begin_of(sampler.samples_of(5, 1, 2, 0).begin + static_cast<uint64_t>(row)));
        for (int64_t t = 0; t < length; ++t) {
          const auto token = static_cast<size_t>(row * length + t);
          CHECK(batch.inputs[token] == begin + chunks.position(t));
          CHECK(batch.targets[token] == batch.inputs[token] + 1);
          ++seen[batch.inputs[token]];
        }
      }
    }
    CHECK(seen.size() == 24);
  }
}

TEST_CASE("loader: evaluation covers the split once and marks padding rows", "[data]") {
  const auto source = counting(100);
  const EvalSampler sampler(100, {.sequence_length = 9, .micro_batch_size = 4, .global_batch_size = 8},
                            0);  // 11 windows
  std::vector<int> seen(100, 0);
  for (int64_t rank = 0; rank < 2; ++rank) {
    Loader loader(
        evaluation_filler(source, sampler, rank, 2),
        {.shape = {.micro_batches = 1, .rows = 4, .sequence_length = 9}, .first = 0, .last = sampler.rounds(2) - 1});
    for (int64_t round = 0; round < sampler.rounds(2); ++round) {
      const Batch& batch = loader.next();
      for (int64_t i = 0; i < batch.valid_rows[0] * 9; ++i)
        ++seen[static_cast<size_t>(batch.targets[static_cast<size_t>(i)])];
      for (int64_t i = batch.valid_rows[0] * 9; i < 36; ++i)
        CHECK(batch.targets[static_cast<size_t>(i)] == batch.inputs[static_cast<size_t>(i)] + 1);
    }
  }
  CHECK(seen[0] == 0);
  for (size_t token = 1; token < 100; ++token) CHECK(seen[token] == 1);
}

TEST_CASE("loader: the newest `held` batches stay valid, and the thread runs ahead no further than its buffers",
          "[data]") {
  for (const auto& [buffers, held] : {std::pair(2, 1), std::pair(3, 2), std::pair(4, 1), std::pair(5, 4)}) {
    std::atomic<int> filled = 0;
    Loader loader(numbering(filled),
                  {.shape = {.sequence_length = 1000}, .first = 1, .last = 200, .buffers = buffers, .held = held});
    std::vector<const Batch*> kept;
    for (int step = 1; step <= 200; ++step) {
      kept.push_back(&loader.next());
      if (step % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      for (int back = 0; back < std::min(held, step); ++back) {
        const Batch& batch = *kept[static_cast<size_t>(step - 1 - back)];
        if (batch.index != step - back || batch.inputs.front() != step - back || batch.inputs.back() != step - back)
          FAIL("batch " << step - back << " was overwritten at step " << step);
      }
      CHECK(filled <= step + buffers - held);
    }
  }
}

TEST_CASE("loader: the thread stops cleanly at any time", "[data]") {
  std::atomic<int> filled = 0;
  for (int taken = 0; taken < 6; ++taken) {
    Loader loader(numbering(filled), {.shape = {}, .first = 1, .last = 5});
    for (int i = 0; i < taken && i < 5; ++i) loader.next();
  }
  const Loader none(numbering(filled), {.shape = {}, .first = 1, .last = 0});
}

TEST_CASE("loader: an error reaches the caller at its step, every time, after the good batches", "[data]") {
  Loader loader(
      [](int64_t index, Batch&) {
        if (index == 4) throw DataError("[data] shard {} is gone.", 7);
      },
      {.shape = {}, .first = 1, .last = 10});
  for (int64_t step = 1; step <= 3; ++step) CHECK(loader.next().index == step);
  CHECK_REFUSED(DataError, loader.next(), "shard 7 is gone");
  CHECK_REFUSED(DataError, loader.next(), "shard 7 is gone");
}

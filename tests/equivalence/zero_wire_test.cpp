// SPDX-License-Identifier: Apache-2.0
// Encoded transfers train the same model: to the bit where nothing else differs, within stated bounds where encoding
// rounds.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>

#include "comm/link.h"
#include "engine/base/format.h"
#include "tests/equivalence/table.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

constexpr int kSteps = 4;

Layout zero(Family family, int stage, int ranks = 3) {
  Layout layout{.name = "wire",
                .model = family == Family::gpt2 ? tiny_gpt2() : tiny_llama(),
                .ranks = ranks,
                .micro_batch = 12 / ranks};
  layout.model.split_tied_embedding = false;
  layout.zero_stage = stage;
  return layout;
}
constexpr Family kFamilies[] = {Family::gpt2, Family::llama};

/// Bytes of the buckets of a step on the channel of `role`.
int64_t sent(const Layout& layout, Role role) {
  const auto job = make_job(layout, 0);
  int64_t bytes = 0;
  for (const Task& task : job->train().tasks)
    if (is_communication(task.op) && task.bucket >= 0 && job->channels[task.channel].role == role)
      bytes += comm::wire_bytes(task.op, task.algorithm, job->mesh.group_size(job->channels[task.channel].axis),
                                task.elems, task.dtype);
  return bytes;
}

/// Root mean square of a - b over that of b, all tensors together.
double root_mean_square_off(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  double squares = 0, all = 0;
  for (size_t t = 0; t < b.size(); ++t)
    for (size_t i = 0; i < b[t].size(); ++i) {
      const double value = b[t][i], off = a[t][i] - value;
      squares += off * off, all += value * value;
    }
  return std::sqrt(squares / all);
}

}  // namespace

TEST_CASE("bfloat16 gradients add in float: every stage, reduce mode and bucket size gives the same bits", "[wire]") {
  for (Family family : kFamilies)
    for (int ranks : {2, 3, 4}) {
      CAPTURE(ranks);
      const auto rounded = [&](int stage) {
        return with(zero(family, stage, ranks), [](Layout& l) { l.wire_dtype = DType::bf16; });
      };
      const Trained one = train(rounded(1), kSteps);
      for (int stage : {2, 3}) CHECK(train(rounded(stage), kSteps).hash == one.hash);
      if (ranks != 3) continue;
      for (ReduceMode reduce_mode : {ReduceMode::naive, ReduceMode::flat, ReduceMode::per_parameter})
        CHECK(train(with(rounded(1), [&](Layout& l) { l.reduce_mode = reduce_mode; }), kSteps).hash == one.hash);
      for (int64_t bytes : {1, 1000, 25 << 20})
        for (int stage : {1, 3})
          CHECK(train(with(rounded(stage), [&](Layout& l) { l.bucket_bytes = bytes; }), kSteps).hash == one.hash);
      for (uint64_t seed : {1, 2, 3})
        CHECK(train(with(rounded(static_cast<int>(seed)),
                         [&](Layout& l) { l.delay_seed = seed, l.evaluate_between = true; }),
                    kSteps)
                  .hash == one.hash);
      // Against float: each rank's gradient is rounded once, 2^-9 of it; their sum is not.
      const Trained exact = train(zero(family, 1), 1), first = train(rounded(1), 1);
      const Trained twice = train(with(zero(family, 0), [](Layout& l) { l.wire_dtype = DType::bf16; }), 1);
      CHECK(first.losses == exact.losses);
      const double error = difference(first.gradients, exact.gradients);
      std::printf("  gradients: %.1e off with sums in float, %.1e with sums rounded again (stage 0)\n", error,
                  difference(twice.gradients, exact.gradients));
      CHECK(error < 0x1p-7);
      CHECK(error > 0x1p-12);
      CHECK(one.hash != train(zero(family, 1), kSteps).hash);
    }
}

TEST_CASE(
    "bfloat16 gradients that are summed by exchange give the bits of a collective that adds in float and rounds once",
    "[wire]") {
  for (Family family : kFamilies)
    for (int ranks : {2, 3, 4})
      for (int stage : {0, 1, 2, 3})
        for (int group : {0, 2}) {
          if (group > 0 && (ranks != 4 || stage == 0)) continue;
          CAPTURE(ranks, stage, group);
          const Layout collective =
              with(zero(family, stage, ranks), [&](Layout& l) { l.wire_dtype = DType::bf16, l.shard_size = group; });
          const Layout exchange = with(collective, [](Layout& l) { l.sums_by_exchange = true, l.delay_seed = 3; });
          CHECK(train(exchange, kSteps).hash == train(collective, kSteps).hash);
          // No collective remains that could round in transit.
          const auto job = make_job(exchange, 0);
          for (const Task& task : job->train().tasks) CHECK((task.op != Op::all_reduce || task.dtype != DType::bf16));
          if (stage == 0 || group > 0) {
            const auto other = make_job(collective, 0);
            CHECK(std::any_of(other->train().tasks.begin(), other->train().tasks.end(),
                              [](const Task& t) { return t.op == Op::all_reduce && t.dtype == DType::bf16; }));
          }
        }
}

TEST_CASE("bfloat16 and int8 send a half and a little more than a quarter of the bytes", "[wire]") {
  for (int stage : {1, 2, 3}) {
    const auto as = [&](Format grads, std::optional<Format> parameters) {
      return with(zero(Family::llama, stage), [&](Layout& l) { l.wire_dtype = grads, l.gather_dtype = parameters; });
    };
    const int64_t gradients = sent(as(DType::f32, {}), Role::reduce),
                  parameters = sent(as(DType::f32, {}), Role::gather);
    CHECK(2 * sent(as(DType::bf16, {}), Role::reduce) == gradients);
    CHECK(2 * sent(as(DType::f32, DType::bf16), Role::gather) == parameters);
    // A scale for each 128, and padding to 16 bytes a part.
    CHECK(static_cast<double>(sent(as(kInt8, {}), Role::reduce)) / static_cast<double>(gradients) >
          0.25 * (1 + 4.0 / 128));
    CHECK(static_cast<double>(sent(as(kInt8, {}), Role::reduce)) / static_cast<double>(gradients) < 0.275);
    CHECK(static_cast<double>(sent(as(DType::f32, kInt8), Role::gather)) / static_cast<double>(parameters) < 0.275);
  }
}

TEST_CASE("parameters that travel rounded are the same on every rank, the owner too, and masters are not rounded",
          "[wire]") {
  struct Row {
    DType model;
    Format travels;
  };
  for (Family family : kFamilies)
    for (const auto& [model, travels] :
         {Row{DType::f32, DType::bf16}, Row{DType::f32, kInt8}, Row{DType::bf16, kInt8}}) {
      const auto exactly = [&](int stage) {
        return with(zero(family, stage), [&](Layout& l) { l.model.dtype = model; });
      };
      const auto gathered = [&](int stage) {
        return with(exactly(stage), [&](Layout& l) { l.gather_dtype = travels; });
      };
      std::string of_stages;
      for (int stage : {1, 2, 3})
        for (int steps : {0, kSteps}) {
          CAPTURE(stage, steps, name_of(model), name_of(travels));
          // The weights that each rank computes with, bucket by bucket, and its part of the masters.
          std::mutex mutex;
          std::map<size_t, std::map<int, std::vector<float>>> whole, shards;
          Layout layout = gathered(stage);
          layout.inspect = [&](runtime::Rank& rank) {
            std::lock_guard lock(mutex);
            for (size_t b = 0; b < rank.job().storage.size(); ++b) {
              const BucketStorage& storage = rank.job().storage[b];
              const auto read = [&](const Slice& slice, auto element) {
                std::vector<decltype(element)> values(static_cast<size_t>(slice.size_bytes) / sizeof element);
                rank.device().copy_to_host(values.data(), rank.memory().entry(slice.buffer).base + slice.begin_bytes,
                                           slice.size_bytes);
                return std::vector<float>(values.begin(), values.end());
              };
              shards[b][rank.job().options.rank] = read(storage.master, float{});
              if (storage.values.size_bytes > 0)
                whole[b][rank.job().options.rank] =
                    model == DType::bf16 ? read(storage.values, bfloat16{}) : read(storage.values, float{});
            }
          };
          const Trained trained = train(layout, steps);
          for (const auto& [b, ranks] : whole) {
            for (const auto& [rank, values] : ranks) CHECK(values == ranks.at(0));
            size_t at = 0;
            int64_t wrong = 0, kept = 0;
            for (const auto& [rank, masters] : shards.at(b))
              for (size_t i = 0; i < masters.size(); ++i, ++at) {
                float largest = 0;
                for (size_t j = i / int64_t{kInt8.block_elems} * int64_t{kInt8.block_elems};
                     j < std::min(masters.size(), (i / int64_t{kInt8.block_elems} + 1) * int64_t{kInt8.block_elems});
                     ++j)
                  largest = std::max(largest, std::abs(masters[j]));
                const float got = ranks.at(0)[at];
                const float half_step = largest * (1.0f / 254 + 1e-6f);
                // Decoded values are rounded once more, to the model's type.
                const auto held = [&](float x) { return model == DType::bf16 ? static_cast<float>(bfloat16(x)) : x; };
                wrong += travels == DType::bf16
                             ? got != static_cast<float>(bfloat16(masters[i]))
                             : got < held(masters[i] - half_step) || got > held(masters[i] + half_step);
                kept += got == masters[i];
              }
            CHECK(wrong == 0);
            CHECK((steps == 0 || kept < static_cast<int64_t>(at)));
          }
          if (steps == 0) continue;
          for (const std::string& hash : trained.rank_hashes) CHECK(hash == trained.hash);
          // bfloat16 rounds each value by itself, but int8 rounds in blocks, whose limits follow the buckets, and stage
          // 1 has other buckets.
          if (travels == DType::bf16 || stage > 1) CHECK((of_stages.empty() || of_stages == trained.hash));
          if (travels == DType::bf16 || stage > 1) of_stages = trained.hash;
          CHECK(train(with(gathered(stage),
                           [&](Layout& l) { l.delay_seed = 6, l.evaluate_between = true, l.update_on_spine = false; }),
                      steps)
                    .hash == trained.hash);
          const Trained exact = train(exactly(stage), steps);
          const double error = difference(trained.weights, exact.weights),
                       loss = std::abs(trained.losses.back() / exact.losses.back() - 1);
          std::printf("  stage %d, %s parameters of a %s model: weights %.1e, loss %.1e off after %d steps\n", stage,
                      std::string(name_of(travels)).c_str(), std::string(name_of(model)).c_str(), error, loss, steps);
          CHECK(error < (travels == DType::bf16 ? 1e-2 : 1e-1));
          CHECK(loss < (travels == DType::bf16 ? 1e-4 : 2e-3));
          CHECK(error > 1e-7);
        }
    }
}

TEST_CASE("int8 gradients: the same bits again and under delays, and bounds on their error", "[wire]") {
  for (Family family : kFamilies)
    for (int stage : {0, 1, 2, 3})
      for (bool feeds_back : {false, true}) {
        CAPTURE(stage, feeds_back);
        const Layout layout =
            with(zero(family, stage), [&](Layout& l) { l.wire_dtype = kInt8, l.error_feedback = feeds_back; });
        const Trained trained = train(layout, kSteps);
        for (const std::string& hash : trained.rank_hashes) CHECK(hash == trained.hash);
        CHECK(train(with(layout, [](Layout& l) { l.delay_seed = 3, l.update_on_spine = false; }), kSteps).hash ==
              trained.hash);
        const Trained exact = train(zero(family, stage), 1), first = train(layout, 1);
        CHECK(first.losses == exact.losses);
        // Each of 3 ranks is off by at most 1/254 of its block's largest, the sum (stage 0) once more.
        const double error = difference(first.gradients, exact.gradients, 1);
        CHECK(error < (stage == 0 ? 4.0 : 3.0) / 254);
        CHECK(error > 1e-5);
      }
}

TEST_CASE(
    "int8 over many steps: the loss stays beside that of float gradients, and with error feedback the weights stay "
    "nearer",
    "[wire]") {
  // The same batch over and over: int8 removes the same part of small gradients in every step. Blocks begin at
  // positions that depend on the buckets, and a run's deviation depends on that by chance: the mean of several counts.
  constexpr int kLong = 40;
  for (Family family : kFamilies) {
    const Layout plain = with(zero(family, 1, 2), [](Layout& l) {
      l.same_batch = true, l.learning_rate = 3e-3f, l.eps = 1e-4f, l.max_norm = 1;
      l.model.vocab = 128;  // blocks of int8 hold no padding
    });
    const Trained exact = train(plain, kLong);
    CHECK(exact.losses.back() < 0.9 * exact.losses.front());
    double weights_off[2] = {0, 0}, loss_off[2] = {0, 0};  // without and with error feedback
    constexpr int64_t kBucketBytes[] = {2 << 10, 3 << 10, 4 << 10, 6 << 10, 8 << 10, 12 << 10, 16 << 10, 1 << 20};
    for (int64_t bytes : kBucketBytes)
      for (int feeds_back : {0, 1}) {
        const Trained trained = train(with(plain,
                                           [&](Layout& l) {
                                             l.wire_dtype = kInt8, l.error_feedback = feeds_back;
                                             l.bucket_bytes = l.first_bucket_bytes = bytes;
                                           }),
                                      kLong);
        for (size_t i = 0; i < exact.losses.size(); ++i)
          loss_off[feeds_back] = std::max(loss_off[feeds_back], std::abs(trained.losses[i] / exact.losses[i] - 1));
        weights_off[feeds_back] += root_mean_square_off(trained.weights, exact.weights) / std::size(kBucketBytes);
      }
    std::printf("  loss %.3f -> %.3f; int8 off by at most %.2f %%, fed back %.2f %%; weights %.2f %% and %.2f %%\n",
                exact.losses.front(), exact.losses.back(), 100 * loss_off[0], 100 * loss_off[1], 100 * weights_off[0],
                100 * weights_off[1]);
    CHECK(loss_off[0] < 0.03);
    CHECK(loss_off[1] < 0.03);
    CHECK(weights_off[1] < weights_off[0]);
  }
}

TEST_CASE("small parameters that stay on every rank change the gathers and no bit", "[wire]") {
  for (Family family : kFamilies)
    for (int micro_batches : {1, 2}) {
      const Layout passing =
          with(zero(family, 3), [&](Layout& l) { l.micro_batch /= micro_batches, l.micro_batches = micro_batches; });
      const Layout staying = with(passing, [](Layout& l) { l.persistent_elems = 128; });
      const auto before = make_job(passing, 1), after = make_job(staying, 1);
      const auto slots = [](const Job& job) { return job.buffers[job.ids.value_slots].size_bytes; };
      CHECK(slots(*after) < slots(*before));
      CHECK(after->buffers.bytes(Owner::parameters) > before->buffers.bytes(Owner::parameters));
      // Every parameter of a layer up to the threshold is whole, no other one is.
      for (size_t b = 0; b < after->storage.size(); ++b)
        for (uint32_t p = after->layout.buckets[b].first_part;
             p < after->layout.buckets[b].first_part + after->layout.buckets[b].part_count; ++p) {
          const ParameterSpec& parameter = after->model.parameters[after->layout.parts[p].part.parameter];
          const bool of_layer = parameter.layer >= 0 && parameter.layer < after->model.layers;
          // And a table that embedding and head share, with its neighbours.
          CHECK((after->storage[b].values.size_bytes > 0) ==
                (of_layer ? parameter.elems <= 128 : family == Family::gpt2));
        }
      CHECK(train(staying, kSteps).hash == train(passing, kSteps).hash);
      CHECK(train(with(staying,
                       [](Layout& l) {
                         l.delay_seed = 12, l.evaluate_between = true, l.wire_dtype = DType::bf16,
                         l.update_on_spine = false;
                       }),
                  kSteps)
                .hash == train(with(passing, [](Layout& l) { l.wire_dtype = DType::bf16; }), kSteps).hash);
    }
}

TEST_CASE("double-buffered weights give the bits of one copy", "[double_buffer]") {
  for (Family family : kFamilies)
    for (int stage : {0, 1, 2})
      for (float max_norm : {0.5f, 0.0f})
        for (DType dtype : {DType::f32, DType::bf16}) {
          CAPTURE(stage, max_norm, name_of(dtype));
          const Layout one = with(zero(family, stage), [&](Layout& l) {
            l.max_norm = max_norm, l.model.dtype = dtype, l.evaluate_between = true;
          });
          const Layout two = with(one, [](Layout& l) { l.double_buffer = true; });
          // An odd number of steps and an even one: the last weights are in either copy.
          for (int steps : {3, 4}) {
            const Trained expected = train(one, steps), got = train(two, steps);
            CHECK(got.hash == expected.hash);
            CHECK(got.losses == expected.losses);
            CHECK(got.evaluations == expected.evaluations);
          }
          CHECK(train(with(two, [](Layout& l) { l.delay_seed = 21; }), 4).hash == train(one, 4).hash);
          const auto a = make_job(one, 0), b = make_job(two, 0);
          CHECK(b->buffers.bytes(Owner::parameters) ==
                a->buffers.bytes(Owner::parameters) + b->buffers.stride_bytes(b->ids.values));
          // The purpose: no update, and no gather of updated weights, waits for a reader of weights.
          for (const Task& task : b->train().tasks)
            for (const Slice& write : task.writes) CHECK(write.buffer != b->ids.values);
        }
  // With encoded parameters too: the first gathers fill the copy that the first step reads.
  const Layout one = with(zero(Family::gpt2, 1), [](Layout& l) { l.gather_dtype = kInt8; });
  CHECK(train(with(one, [](Layout& l) { l.double_buffer = true; }), 3).hash == train(one, 3).hash);
}

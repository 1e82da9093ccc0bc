// SPDX-License-Identifier: Apache-2.0
// Tables hold a multiple of 128 rows on every layout, and the rows after the last token change nothing.

#include <algorithm>
#include <atomic>
#include <cmath>

#include "tests/equivalence/trained.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

constexpr int kSteps = 3;
constexpr int64_t kVocab = 131;  // the table has 256 rows

Layout layout_of(bool llama, int64_t vocab = kVocab) {
  Layout layout{.name = llama ? "llama" : "gpt2", .model = llama ? tiny_llama() : tiny_gpt2(), .micro_batch = 4};
  layout.model.heads = layout.model.kv_heads = 4;
  layout.model.width = 32;
  layout.model.vocab = vocab;
  layout.model.tokens = layout.model.context = 8;
  return layout;
}

bool is_table(const Job& job, const ParameterSpec& parameter) {
  return parameter.tensors.front().split.whole == job.model.vocab;
}

/// Flops of the products of the head in one training micro-batch.
int64_t head_flops(const ModelSpec& model) {
  int64_t flops = 0;
  for (const std::vector<uint32_t>* pass : {&model.forward, &model.backward})
    for (uint32_t piece : *pass)
      for (const Work& work : model.pieces[piece].works)
        if (model.pieces[piece].layer == model.layers && work.name.starts_with("matmul")) flops += work.cost.flops;
  return flops;
}

}  // namespace

TEST_CASE("tables have a multiple of 128 rows on every layout, and plans count the tokens only", "[vocabulary]") {
  for (bool llama : {false, true})
    for (int64_t vocab : {1, 65, 128, 131, 50257})
      for (DType dtype : {DType::f32, DType::bf16})
        for (int tensor : {1, 2, 4}) {
          CAPTURE(llama, vocab, name_of(dtype), tensor);
          const Layout layout = with(layout_of(llama, vocab), [&](Layout& l) {
            l.tensor = tensor, l.model.dtype = dtype, l.bucket_bytes = 25 << 20, l.head_chunk_bytes = 1 << 20;
          });
          const auto job = make_job(layout, 0),
                     exact = make_job(with(layout, [](Layout&l) { l.model.vocab = 128; }), 0);
          const int64_t rows = layout.micro_batch * layout.model.tokens, width = layout.model.width;
          const int64_t tables = layout.model.tie_embeddings ? 1 : 2, held = job->model.logits_stride;
          CHECK((held * tensor % 128 == 0 && held * tensor >= vocab));
          CHECK(held * tensor - vocab < 64 * std::max(2, tensor));
          CHECK(job->buffers[job->model.logits].size_bytes == rows * held * size_of(dtype));
          // Whole vectors and TMA need multiples of 16 bytes.
          CHECK(held * size_of(dtype) % 128 == 0);
          CHECK(std::count_if(job->model.parameters.begin(), job->model.parameters.end(), [&](const ParameterSpec& p) {
                  return is_table(*job, p) && p.elems == held * width;
                }) == tables);
          CHECK(job->parameter_elems - exact->parameter_elems == (vocab - 128) * width * tables);
          if (tensor > 1) continue;
          CHECK(job->model.parameter_elems() == job->parameter_elems);
          CHECK(head_flops(job->model) == 6 * rows * width * vocab);
        }
}

TEST_CASE("rows after the last token stay zero, and their gradients are zero", "[vocabulary]") {
  struct Row {
    int ranks = 1, stages = 1, zero = 0, micro_batches = 1;
    DType dtype = DType::f32;
  };
  for (bool llama : {false, true})
    for (const Row& row : {Row{}, Row{.micro_batches = 2}, Row{.ranks = 3}, Row{.ranks = 2, .zero = 1},
                           Row{.ranks = 2, .zero = 2, .micro_batches = 2}, Row{.ranks = 3, .zero = 3}, Row{.stages = 2},
                           Row{.ranks = 2, .zero = 3, .dtype = DType::bf16}}) {
      CAPTURE(llama, row.ranks, row.stages, row.zero, row.micro_batches, name_of(row.dtype));
      std::atomic<int64_t> seen = 0, filled = 0, tokens = 0;
      const Trained trained =
          train(with(layout_of(llama),
                     [&](Layout& l) {
                       l.ranks = row.ranks, l.stages = row.stages, l.zero_stage = row.zero;
                       l.micro_batches = row.micro_batches, l.model.dtype = row.dtype;
                       l.model.split_tied_embedding = row.zero == 0;
                       l.inspect = [&](runtime::Rank& rank) {
                         const Job& job = rank.job();
                         for (size_t p = 0; p < job.model.parameters.size(); ++p) {
                           const ParameterSpec& table = job.model.parameters[p];
                           if (!is_table(job, table)) continue;
                           const int64_t first = job.layout.parameter_offsets[p];
                           const int64_t end = first + table.elems, padding = first + kVocab * l.model.width;
                           for (Slice BucketStorage::*what : {&BucketStorage::master, &BucketStorage::gradient}) {
                             for (float value : rank.held(what, first, padding)) tokens += value != 0;
                             for (float value : rank.held(what, padding, end)) ++seen, filled += value != 0;
                           }
                         }
                       };
                     }),
                kSteps);
      CHECK(seen > 0);
      CHECK(filled == 0);
      CHECK(tokens > 0);
      // The loss is the mean of -log(1 / tokens); if the padding took part, it would be log(256).
      CHECK(std::abs(trained.losses[0] - std::log(static_cast<double>(kVocab))) < 0.1);
    }
}

TEST_CASE("values in the padding of a whole table reach no loss, gradient, norm or weight", "[vocabulary]") {
  for (bool llama : {false, true})
    for (int ranks : {1, 2}) {
      CAPTURE(llama, ranks);
      const Layout clean = with(layout_of(llama), [&](Layout& l) { l.ranks = ranks, l.evaluate_between = true; });
      const auto filled = [&](int64_t first_row) {
        return with(clean, [=](Layout& l) {
          l.mutate = [=](Job& job) {
            std::vector<Slice> rows;
            for (const ParameterSpec& p : job.model.parameters)
              if (is_table(job, p)) rows.push_back({p.value, first_row * 32 * 4, (256 - first_row) * 32 * 4});
            std::function<void(LaunchContext&)>& first = job.model.pieces[job.model.forward.front()].works.front().fn;
            first = [rows, then = first](LaunchContext& c) {
              for (const Slice& slice : rows) std::fill_n(c.as<float>(slice), slice.size_bytes / 4, 1e3f);
              then(c);
            };
          };
        });
      };
      const Trained expected = train(clean, kSteps), dirty = train(filled(kVocab), kSteps);
      CHECK(dirty.hash == expected.hash);
      CHECK(dirty.losses == expected.losses);
      CHECK(dirty.norms == expected.norms);
      CHECK(dirty.gradients == expected.gradients);
      CHECK(dirty.evaluations == expected.evaluations);
      CHECK(train(filled(kVocab - 1), kSteps).losses != expected.losses);  // the control: the last token is not padding
    }
}

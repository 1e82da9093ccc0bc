// SPDX-License-Identifier: Apache-2.0
// Ops that memory bounds, as bytes per second beside a plain copy: AdamW, casts, sums, cross-entropy, embeddings.

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "engine/base/philox.h"
#include "kernels/adamw/adamw.h"
#include "kernels/cast/cast.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/embedding/embedding.h"
#include "kernels/sum_squares/sum_squares.h"
#include "tests/bench/stopwatch.h"

namespace {

using namespace slipstream;
using namespace slipstream::kernels;

void print(const char* name, int threads, const Cost& cost, const bench::Timing& time, int64_t elems) {
  fmt::print("{:<22} {} thr  {:6.2f} GB/s (best {:6.2f})  {:7.3f} ns/elem  median {:8.3f} ms\n", name, threads,
             static_cast<double>(cost.bytes) / time.median_s * 1e-9,
             static_cast<double>(cost.bytes) / time.best_s * 1e-9, time.median_s / static_cast<double>(elems) * 1e9,
             time.median_s * 1e3);
}

void run_flat(int threads) {
  constexpr int64_t kElems = 20'000'000;
  ThreadPool pool(threads);
  LaunchContext context;
  context.pool = &pool;
  std::vector<float> p(kElems, 0.5f), m(kElems, 0.01f), v(kElems, 0.02f), g(kElems, 0.1f);
  std::vector<bfloat16> working(kElems);
  const AdamwScalars scalars{1e-3f, 1.0f, 1.0f, 1.0f};
  double sum = 0.0;
  const Adamw plain{p.data(), m.data(), v.data(), g.data(), nullptr, kElems, &scalars, 0.9f, 0.999f, 1e-8f, 0.1f};
  Adamw with_working = plain;
  with_working.working = working.data();
  const SumSquares squares{g.data(), kElems, &sum};
  const Cast narrow{g.data(), working.data(), kElems, DType::f32, DType::bf16};
  const Cast widen{working.data(), g.data(), kElems, DType::bf16, DType::f32};
  const Add sums{m.data(), g.data(), kElems};
  const Cast copy{m.data(), g.data(), kElems, DType::f32, DType::f32};
  const auto t =
      bench::interleaved(9, {[&] { adamw(context, plain); }, [&] { adamw(context, with_working); },
                             [&] { sum_squares(context, squares); }, [&] { cast(context, narrow); },
                             [&] { cast(context, widen); }, [&] { add(context, sums); }, [&] { cast(context, copy); }});
  print("adamw", threads, adamw_cost(plain), t[0], kElems);
  print("adamw + bf16 copy", threads, adamw_cost(with_working), t[1], kElems);
  print("sum_squares", threads, sum_squares_cost(squares), t[2], kElems);
  print("cast f32 to bf16", threads, cast_cost(narrow), t[3], kElems);
  print("cast bf16 to f32", threads, cast_cost(widen), t[4], kElems);
  print("add", threads, add_cost(sums), t[5], kElems);
  print("copy", threads, cast_cost(copy), t[6], kElems);
}

template <typename T>
void run_loss(const char* name, int threads, int64_t rows, int64_t vocab) {
  ThreadPool pool(threads);
  LaunchContext context;
  context.pool = &pool;
  const Philox philox(1, "logits");
  std::vector<T> logits(static_cast<size_t>(rows * vocab));
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = T(static_cast<float>(philox.uniform(i)) * 4.0f - 2.0f);
  std::vector<int32_t> targets(static_cast<size_t>(rows));
  for (size_t i = 0; i < targets.size(); ++i)
    targets[i] = static_cast<int32_t>(philox.below(i, static_cast<uint64_t>(vocab)));
  std::vector<float> losses(static_cast<size_t>(rows));
  double sum = 0.0;
  CrossEntropy both{logits.data(), targets.data(), &sum, losses.data(),      rows,
                    vocab,         vocab,          1.0f, dtype_of<T>::value, true};
  CrossEntropy loss = both;
  loss.backward = false;
  const auto t = bench::interleaved(9, {[&] { cross_entropy(context, both); }, [&] { cross_entropy(context, loss); }});
  print(name, threads, cross_entropy_cost(both), t[0], rows * vocab);
  print("  loss only", threads, cross_entropy_cost(loss), t[1], rows * vocab);
}

void run_embedding(int threads) {
  constexpr int64_t kRows = 1024, kWidth = 768, kVocab = 50257;
  ThreadPool pool(threads);
  LaunchContext context;
  context.pool = &pool;
  const Philox philox(1, "ids");
  std::vector<int32_t> ids(kRows);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(philox.below(i, kVocab));
  std::vector<float> table(kVocab * kWidth, 0.1f), positions(kRows * kWidth, 0.2f), y(kRows * kWidth);
  const EmbeddingForward forward{ids.data(), table.data(), positions.data(), y.data(), 1, kRows, kWidth};
  const EmbeddingBackward backward{ids.data(), y.data(), table.data(), kRows, kWidth, kVocab, DType::f32, true};
  const auto t = bench::interleaved(
      15, {[&] { embedding_forward(context, forward); }, [&] { embedding_backward(context, backward); }});
  print("embedding forward", threads, embedding_forward_cost(forward), t[0], kRows * kWidth);
  print("embedding backward", threads, embedding_backward_cost(backward), t[1], kRows * kWidth);
}

}  // namespace

/// Usage: memory_ops_bench [threads...]; 1 and 2 by default.
int main(int argc, char** argv) {
  std::vector<int> threads;
  for (int i = 1; i < argc; ++i) threads.push_back(std::stoi(argv[i]));
  if (threads.empty()) threads = {1, 2};
  for (const int count : threads) {
    run_flat(count);
    run_loss<float>("cross_entropy 50257", count, 128, 50257);
    run_loss<bfloat16>("cross_entropy bf16", count, 128, 50257);
    run_loss<float>("cross_entropy 65", count, 768, 65);
    run_embedding(count);
  }
}

// SPDX-License-Identifier: Apache-2.0
// Dropout on the CPU: a vector of Philox counters at a time.

#include <algorithm>

#include "kernels/common/philox_cpu.h"
#include "kernels/common/vectors.h"
#include "kernels/dropout/dropout.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

constexpr int kCounters = 32;  // computed together
constexpr int kFeatures = 4 * kCounters;

/// words[4 i + j]: word j of counter {first + i, position, sequence, step}.
void feature_words(uint32_t first, uint32_t position, const DropoutSample& sample, uint64_t key,
                   uint32_t (&words)[kFeatures]) {
  uint32_t a[kCounters], b[kCounters], c[kCounters], d[kCounters];
  for (uint32_t i = 0; i < kCounters; ++i) {
    a[i] = first + i;
    b[i] = position;
    c[i] = sample.sequence;
    d[i] = sample.step;
  }
  philox_words(a, b, c, d, key);
  for (int i = 0; i < kCounters; ++i) {
    words[4 * i] = a[i];
    words[4 * i + 1] = b[i];
    words[4 * i + 2] = c[i];
    words[4 * i + 3] = d[i];
  }
}

template <typename T>
void drop(LaunchContext& context, const Dropout& args) {
  const int64_t tokens = args.chunks.local_tokens();
  const Vu least = Vu{} + dropout_threshold(args.rate);
  const float scale = dropout_scale(args.rate);
  context.parallel_for(args.rows, std::max<int64_t>(1, 8192 / args.width), [&](int64_t begin, int64_t end) {
    alignas(64) uint32_t words[kFeatures];
    for (int64_t row = begin; row < end; ++row) {
      const DropoutSample sample = args.samples[(args.first_row + row) / tokens];
      const auto position = static_cast<uint32_t>(args.chunks.position((args.first_row + row) % tokens));
      const T* const d = static_cast<const T*>(args.d) + row * args.width;
      const T* const x = args.x == nullptr ? nullptr : static_cast<const T*>(args.x) + row * args.width;
      T* const y = static_cast<T*>(args.y) + row * args.width;
      for (int64_t first = 0; first < args.width; first += kFeatures) {
        feature_words(static_cast<uint32_t>(first / 4), position, sample, args.key, words);
        for_vectors(first, std::min(args.width, first + kFeatures), [&](auto lanes, int64_t i) {
          Vu word;
          std::memcpy(&word, words + (i - first), sizeof word);
          // The mask between product and sum also prevents a fused operation, which would round differently.
          const Vu kept = reinterpret_cast<Vu>(lanes.load(d + i) * scale) & reinterpret_cast<Vu>(word >= least);
          const Vf value = reinterpret_cast<Vf>(kept);
          lanes.store(y + i, x == nullptr ? value : lanes.load(x + i) + value);
        });
      }
    }
  });
}

}  // namespace

void dropout_cpu(LaunchContext& context, const Dropout& args) {
  if (args.dtype == DType::f32) return drop<float>(context, args);
  drop<bfloat16>(context, args);
}

}  // namespace slipstream::kernels::SLIP_ISA

// SPDX-License-Identifier: Apache-2.0
// The rows in the order of experts on the CPU.

#include <algorithm>

#include "kernels/common/vectors.h"
#include "kernels/experts/rows.h"
#include "kernels/matmul/product.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

// Below this many bytes or choices, waking a thread costs more than it saves.
constexpr int64_t kGrainBytes = 1 << 16;
constexpr int64_t kGrainChoices = 1 << 13;

int64_t rows_of(const int32_t* count, int64_t max_rows) {
  return count == nullptr ? max_rows : std::clamp<int64_t>(*count, 0, max_rows);
}

template <typename T>
void return_row(const ReturnRows& args, int64_t token) {
  const int64_t width = args.width;
  const T* const from = static_cast<const T*>(args.from);
  const T* const add = args.add == nullptr ? nullptr : static_cast<const T*>(args.add) + token * width;
  T* const to = static_cast<T*>(args.to) + token * width;
  const int32_t* const places = args.places + token * args.top_k;
  for_vectors(0, width, [&](auto lanes, int64_t i) {
    Vf sum = add == nullptr ? Vf{} : lanes.load(add + i);
    for (int64_t j = 0; j < args.top_k; ++j)
      if (places[j] >= 0) sum += lanes.load(from + places[j] * width + i);
    lanes.store(to + i, sum);
  });
  if (args.weights == nullptr) return;
  float* const weights = args.weights + token * args.top_k;
  for (int64_t j = 0; j < args.top_k; ++j) weights[j] = places[j] < 0 ? 0.0f : args.row_weights[places[j]];
}

}  // namespace

/// Every part counts its choices of each expert. The sums over earlier experts and earlier parts are the positions of
/// its first choices, so that the order does not depend on the number of parts.
void arrange_rows_cpu(LaunchContext& context, const ArrangeRows& args) {
  const int64_t choices = args.tokens * args.top_k, experts = args.experts;
  const int64_t parts = std::clamp<int64_t>(choices / kGrainChoices, 1, context.pool->threads());
  auto* const next = reinterpret_cast<int32_t*>(product_scratch(Scratch::a, parts * experts));
  std::memset(next, 0, static_cast<size_t>(parts * experts) * sizeof(int32_t));
  const auto for_choices = [&](int64_t begin, int64_t end, const auto& body) {
    for (int64_t part = begin; part < end; ++part)
      for (int64_t i = choices * part / parts; i < choices * (part + 1) / parts; ++i) {
        const int64_t expert = args.chosen[i] - args.first;
        body(i, expert >= 0 && expert < experts ? next + part * experts + expert : nullptr);
      }
  };
  context.parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
    for_choices(begin, end, [](int64_t, int32_t* count) {
      if (count != nullptr) ++*count;
    });
  });
  int32_t position = 0;
  for (int64_t e = 0; e < experts; ++e) {
    args.offsets[e] = position;
    for (int64_t part = 0; part < parts; ++part) position += std::exchange(next[part * experts + e], position);
  }
  args.offsets[experts] = position;
  context.parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
    for_choices(begin, end, [&](int64_t i, int32_t* place) {
      args.places[i] = place == nullptr ? -1 : (*place)++;
      if (place != nullptr) args.rows[args.places[i]] = static_cast<int32_t>(i);
    });
  });
}

void take_rows_cpu(LaunchContext& context, const TakeRows& args) {
  const int64_t row_bytes = bytes_of(args.width, args.dtype);
  const auto* from = static_cast<const std::byte*>(args.from);
  auto* to = static_cast<std::byte*>(args.to);
  context.parallel_for(
      rows_of(args.count, args.max_rows), 1 + kGrainBytes / row_bytes, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          std::memcpy(to + i * row_bytes, from + args.rows[i] / args.top_k * row_bytes, static_cast<size_t>(row_bytes));
          if (args.weights != nullptr) args.row_weights[i] = args.weights[args.rows[i]];
        }
      });
}

void return_rows_cpu(LaunchContext& context, const ReturnRows& args) {
  const int64_t token_bytes = bytes_of(args.top_k * args.width, args.dtype);
  context.parallel_for(args.tokens, 1 + kGrainBytes / token_bytes, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token)
      args.dtype == DType::f32 ? return_row<float>(args, token) : return_row<bfloat16>(args, token);
  });
}

}  // namespace slipstream::kernels::SLIP_ISA

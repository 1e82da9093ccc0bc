// SPDX-License-Identifier: Apache-2.0
#pragma once
// Norms of rows of whole packs that fit in registers: all loads of a row are in flight at once, nothing is read twice.
//
// kRowWarps warps share a row, so that a lane has at most kHeldPacks packs of it: 1024 elements per warp in bf16. The
// sums of dweight and dbias also stay in registers until a block has finished its rows.

#include "kernels/cuda/norm_types.cuh"

namespace slipstream::kernels {

constexpr int kHeldPacks = 4, kMostRowWarps = 8;

/// Roles in a block: groups of kRowWarps warps, each processing one row at a time.
template <int kRowWarps>
struct NormGroups {
  static constexpr int kWarps = kRowWarps > kNormWarps ? kRowWarps : kNormWarps, kThreads = kWarps * kWarp,
                       kGroups = kWarps / kRowWarps, kLanes = kRowWarps * kWarp;
  int group = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;

  template <typename T>
  __device__ __forceinline__ int column(int pack) const {
    return (pack * kLanes + lane) * kPack<T>;
  }
  /// Each value summed over the row's lanes, with the same bits in all of them. `turn` counts calls; all threads of a
  /// block call it or none.
  template <int kValues>
  __device__ __forceinline__ void sum(float (&values)[kValues], const Shared<float>& exchange, int turn) const {
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] = warp_sum(values[i]);
    if constexpr (kRowWarps > 1) {
      // Two places in turn: an early warp writes where no warp reads any more.
      const int place = turn % 2 * kWarps * kValues, warp = static_cast<int>(threadIdx.x) / kWarp;
      if (threadIdx.x % kWarp == 0)
#pragma unroll
        for (int i = 0; i < kValues; ++i) exchange[place + warp * kValues + i] = values[i];
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        values[i] = 0.0f;
#pragma unroll
        for (int w = 0; w < kRowWarps; ++w) values[i] += exchange[place + (group * kRowWarps + w) * kValues + i];
      }
    }
  }
};

/// Loads whole packs; zeros beyond the end.
template <typename T>
__device__ __forceinline__ ptx::Words load_pack(const T* p, int left) {
  return left > 0 ? ptx::load_16(p) : ptx::Words{};
}
template <typename T>
__device__ __forceinline__ void store_pack(T* p, int left, const float (&values)[kPack<T>]) {
  if (left > 0) ptx::store_16(p, packed(values, T{}));
}

template <bool kCentre, int kRowWarps, typename T>
__global__ void __launch_bounds__(NormGroups<kRowWarps>::kThreads) held_norm_forward_kernel(NormForward<T> args) {
  using Groups = NormGroups<kRowWarps>;
  __shared__ float storage[2 * Groups::kWarps];
  const Shared<float> exchange(storage);
  const Groups groups;
  const int64_t row = int64_t{blockIdx.x} * Groups::kGroups + groups.group, begin = row * args.width;
  const int width = row < args.rows ? static_cast<int>(args.width) : 0;  // a row past the last one has no elements
  const float share = 1.0f / static_cast<float>(args.width);
  ptx::Words held[kHeldPacks];
#pragma unroll
  for (int p = 0; p < kHeldPacks; ++p) {
    const int column = groups.template column<T>(p);
    held[p] = load_pack(args.x + begin + column, width - column);
  }
  if (args.delta) {
    ptx::Words deltas[kHeldPacks];
#pragma unroll
    for (int p = 0; p < kHeldPacks; ++p) {
      const int column = groups.template column<T>(p);
      deltas[p] = load_pack(args.delta + begin + column, width - column);
    }
#pragma unroll
    for (int p = 0; p < kHeldPacks; ++p) {
      const int column = groups.template column<T>(p);
      float v[kPack<T>], d[kPack<T>];
      unpack(held[p], v, T{}), unpack(deltas[p], d, T{});
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) v[i] += d[i];
      held[p] = packed(v, T{});
      store_pack(args.sum + begin + column, width - column, v);
    }
  }
  float mean[1] = {}, squares[1] = {};
  if constexpr (kCentre) {
#pragma unroll
    for (int p = 0; p < kHeldPacks; ++p) {
      float v[kPack<T>];
      unpack(held[p], v, T{});
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) mean[0] += v[i];
    }
    groups.sum(mean, exchange, 0);
    mean[0] *= share;
  }
#pragma unroll
  for (int p = 0; p < kHeldPacks; ++p) {
    const int left = width - groups.template column<T>(p);
    float v[kPack<T>];
    unpack(held[p], v, T{});
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) squares[0] += i < left ? (v[i] - mean[0]) * (v[i] - mean[0]) : 0.0f;
  }
  groups.sum(squares, exchange, 1);
  const float inv = 1.0f / sqrtf(squares[0] * share + args.eps);
#pragma unroll
  for (int p = 0; p < kHeldPacks; ++p) {
    const int column = groups.template column<T>(p), left = width - column;
    float v[kPack<T>], w[kPack<T>], b[kPack<T>] = {};
    unpack(held[p], v, T{});
    unpack(load_pack(args.weight + column, left), w, T{});
    if constexpr (kCentre) unpack(load_pack(args.bias + column, left), b, T{});
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      const float n = (v[i] - mean[0]) * inv;
      v[i] = kCentre ? n * w[i] + b[i] : rounded<T>(n) * w[i];
    }
    store_pack(args.y + begin + column, left, v);
  }
  if (groups.lane > 0 || row >= args.rows) return;
  if constexpr (kCentre) args.mean[row] = mean[0];
  args.inv[row] = inv;
}

/// A block processes `rows_per_block` rows, its groups in turn: dx, and the group's sums row after row. At the end the
/// sums of the groups are added in order and stored in partial[block].
template <bool kCentre, int kRowWarps, typename T>
__global__ void __launch_bounds__(NormGroups<kRowWarps>::kThreads, 12 / NormGroups<kRowWarps>::kWarps)
    held_norm_backward_kernel(NormBackward<T> args, int64_t rows_per_block, float* all_partial) {
  using Groups = NormGroups<kRowWarps>;
  SLIP_DYNAMIC_SHARED(bytes);
  const NormSums<kCentre, T> layout(args.width);
  const int64_t floats = layout.floats();
  const Shared<float> sums(bytes, static_cast<int>(Groups::kGroups * floats));
  __shared__ float storage[4 * Groups::kWarps];
  const Shared<float> exchange(storage);
  const Groups groups;
  const float share = 1.0f / static_cast<float>(args.width);
  const auto weight = [&](int pack) {  // in L1, read again for every row
    const int column = groups.template column<T>(pack);
    return load_pack(args.weight + column, static_cast<int>(args.width) - column);
  };
  float dweight[kHeldPacks][kPack<T>] = {}, dbias[kHeldPacks][kPack<T>] = {};
  const int64_t first = blockIdx.x * rows_per_block,
                end = first + rows_per_block < args.rows ? first + rows_per_block : args.rows;
  int turn = 0;
  for (int64_t of_block = first; of_block < end; of_block += Groups::kGroups, ++turn) {
    const int64_t row = of_block + groups.group, begin = row * args.width;
    const int width = row < end ? static_cast<int>(args.width) : 0;  // a row past the last one has no elements
    ptx::Words dy[kHeldPacks], x[kHeldPacks], residual[kHeldPacks] = {};
#pragma unroll
    for (int p = 0; p < kHeldPacks; ++p) {
      const int column = groups.template column<T>(p), left = width - column;
      const int64_t at = begin + column;
      dy[p] = load_pack(args.dy + at, left);
      x[p] = load_pack(args.x + at, left);
      if (args.residual) residual[p] = load_pack(args.residual + at, left);
    }
    const float inv = width > 0 ? args.inv[row] : 0.0f, mean = kCentre && width > 0 ? args.mean[row] : 0.0f;
    float means[2] = {};  // of g = dy weight and of g times the normalised x
#pragma unroll
    for (int p = 0; p < kHeldPacks; ++p) {
      float d[kPack<T>], v[kPack<T>], w[kPack<T>];
      unpack(dy[p], d, T{}), unpack(x[p], v, T{}), unpack(weight(p), w, T{});
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) means[0] += d[i] * w[i], means[1] += d[i] * w[i] * (v[i] - mean) * inv;
    }
    groups.sum(means, exchange, turn);
    const float mean_g = kCentre ? means[0] * share : 0.0f, mean_gn = means[1] * share;
#pragma unroll
    for (int p = 0; p < kHeldPacks; ++p) {
      const int column = groups.template column<T>(p), left = width - column;
      const int64_t at = begin + column;
      float d[kPack<T>], v[kPack<T>], w[kPack<T>], r[kPack<T>];
      ptx::make_again(dy[p]), ptx::make_again(x[p]);  // as floats they need twice the registers
      unpack(dy[p], d, T{}), unpack(x[p], v, T{}), unpack(weight(p), w, T{}), unpack(residual[p], r, T{});
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        const float n = (v[i] - mean) * inv;
        v[i] = r[i] + inv * (d[i] * w[i] - mean_g - n * mean_gn);
        dweight[p][i] += d[i] * n;
        if constexpr (kCentre) dbias[p][i] += d[i];
      }
      store_pack(args.dx + at, left, v);
    }
  }
#pragma unroll
  for (int p = 0; p < kHeldPacks; ++p) {
    const int pack = groups.template column<T>(p) / kPack<T>;
    if (pack >= layout.packs) continue;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      const int at = static_cast<int>(groups.group * floats + i * layout.packs + pack);
      sums[at] = dweight[p][i];
      if constexpr (kCentre) sums[at + static_cast<int>(layout.of_weight())] = dbias[p][i];
    }
  }
  __syncthreads();
  for (int64_t at = threadIdx.x; at < floats; at += Groups::kThreads) {
    float sum = sums[static_cast<int>(at)];
    for (int group = 1; group < Groups::kGroups; ++group) sum += sums[static_cast<int>(group * floats + at)];
    all_partial[blockIdx.x * floats + at] = sum;
  }
}

}  // namespace slipstream::kernels

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Norms of rows of whole packs that fit on the chip: all loads of a row are in flight at once, and nothing is read
// twice.
//
// kRowWarps warps share a row, so that a lane has at most kHeldPacks packs of it: 1024 elements per warp in bf16. The
// forward pass holds a row in registers. The backward pass holds the sums of dweight and dbias in registers until a
// block has finished its rows, and the current row and the next one in shared memory. A lane copies there only what it
// reads itself, so the copies need no barrier and no registers. For bf16 and a width of 768 (3 packs per lane), 128
// registers allow 16 warps per multiprocessor, each with 4.5 KiB of its next row in flight. These are 72 KiB, where 3
// TB/s at a latency of 1 us need 22.

#include "kernels/cuda/norm_types.cuh"

namespace slipstream::kernels {

constexpr int kHeldPacks = 4, kMostRowWarps = 8;

/// The roles in a block: groups of kRowWarps warps, each of which processes one row at a time.
template <int kRowWarps>
struct NormGroups {
  static constexpr int kWarps = kRowWarps > kNormWarps ? kRowWarps : kNormWarps, kThreads = kWarps * kWarp,
                       kGroups = kWarps / kRowWarps, kLanes = kRowWarps * kWarp;
  int group = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;

  template <typename T>
  __device__ __forceinline__ int column(int pack) const {
    return (pack * kLanes + lane) * kPack<T>;
  }
  /// Each value summed over the row's lanes, with the same bits in all of them. `turn` counts the calls. All threads of
  /// a block call it, or none.
  template <int kValues>
  __device__ __forceinline__ void sum(float (&values)[kValues], const Shared<float>& exchange, int turn) const {
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] = warp_sum(values[i]);
    if constexpr (kRowWarps > 1) {
      // Two places in turn: an early warp writes to a place from which no warp reads any more.
      const int place = turn % 2 * kWarps * kValues, warp = static_cast<int>(threadIdx.x) / kWarp;
      if (threadIdx.x % kWarp == 0)
#pragma unroll
        for (int i = 0; i < kValues; ++i) exchange[place + warp * kValues + i] = values[i];
      __syncthreads();  // the sums of all warps are there
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        values[i] = 0.0f;
#pragma unroll
        for (int w = 0; w < kRowWarps; ++w) values[i] += exchange[place + (group * kRowWarps + w) * kValues + i];
      }
    }
  }
};

/// Loads whole packs, with zeros beyond the end.
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
  ptx::after_earlier_kernels();
  using Groups = NormGroups<kRowWarps>;
  __shared__ float storage[2 * Groups::kWarps];
  const Shared<float> exchange(storage);
  const Groups groups;
  const int64_t row = int64_t{blockIdx.x} * Groups::kGroups + groups.group, begin = row * args.width;
  const int width = row < args.rows ? static_cast<int>(args.width) : 0;  // a row after the last one has no elements
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

constexpr int kStages = 2;  // rows of a group in shared memory: the current one and the next

/// dy, x and residual of a block's rows in shared memory. A thread reads only what it has copied itself.
template <int kRowWarps, int kPacks, typename T>
struct NormStages {
  using Groups = NormGroups<kRowWarps>;
  static constexpr int kTensors = 3, kElems = kStages * kTensors * kPacks * Groups::kThreads * kPack<T>,
                       kBytes = kElems * static_cast<int>(sizeof(T));
  Shared<T> elems;

  __device__ __forceinline__ T* at(int stage, int tensor, int pack) const {
    const int line = (stage * kTensors + tensor) * kPacks + pack;
    return elems.at((line * Groups::kThreads + static_cast<int>(threadIdx.x)) * kPack<T>);
  }
};

/// The sums of dx over a group's rows. They are in shared memory, because the other sums leave no registers. A thread
/// uses only its own.
template <int kRowWarps, int kPacks, typename T>
struct NormTotals {
  using Groups = NormGroups<kRowWarps>;
  static constexpr int kElems = kPacks * Groups::kThreads * kPack<T>, kBytes = kElems * static_cast<int>(sizeof(float));
  Shared<float> elems;

  /// Neighbouring threads use neighbouring pieces of 16 bytes.
  __device__ __forceinline__ static int place(int thread, int pack, int i) {
    return ((pack * (kPack<T> / 4) + i / 4) * Groups::kThreads + thread) * 4 + i % 4;
  }
  /// The sums = value, or sums + value.
  __device__ __forceinline__ void put(int pack, const float (&value)[kPack<T>], bool add) const {
#pragma unroll
    for (int i = 0; i < kPack<T>; i += 4) {
      float* const to = elems.at(place(static_cast<int>(threadIdx.x), pack, i));
      float sum[4] = {};
      if (add) unpack(ptx::load_16(to), sum, float{});
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[j] += value[i + j];
      ptx::store_16(to, packed(sum, float{}));
    }
  }
};

/// A block processes `rows_per_block` rows, and its groups take turns: each computes dx, and its sums row after row. At
/// the end the sums of the groups are added in order and stored in partial[block]. A lane has at most kPacks packs of a
/// row.
template <bool kCentre, int kRowWarps, int kPacks, typename T>
__global__ void __launch_bounds__(NormGroups<kRowWarps>::kThreads, 16 / NormGroups<kRowWarps>::kWarps)
    held_norm_backward_kernel(NormBackward<T> args, int64_t rows_per_block, float* all_partial) {
  ptx::after_earlier_kernels();
  using Groups = NormGroups<kRowWarps>;
  using Stages = NormStages<kRowWarps, kPacks, T>;
  using Totals = NormTotals<kRowWarps, kPacks, T>;
  SLIP_DYNAMIC_SHARED(all_bytes);
  const bool sums_dx = kCentre && args.dx_sums;
  const Totals totals = {Shared<float>(all_bytes, sums_dx ? Totals::kElems : 0)};
  unsigned char* const bytes = all_bytes + (sums_dx ? Totals::kBytes : 0);
  const Stages stages = {Shared<T>(bytes, Stages::kElems)};
  __shared__ float storage[4 * Groups::kWarps];
  const Shared<float> exchange(storage);
  const Groups groups;
  const float share = 1.0f / static_cast<float>(args.width);
  const auto weight = [&](int pack) {  // it is in L1, and read again for every row
    const int column = groups.template column<T>(pack);
    return load_pack(args.weight + column, static_cast<int>(args.width) - column);
  };
  const int64_t first = blockIdx.x * rows_per_block,
                end = first + rows_per_block < args.rows ? first + rows_per_block : args.rows;
  const auto fetch = [&](int64_t row, int stage) {  // zeros for a row after the last one and after the end of a row
    const int64_t begin = row < end ? row * args.width : 0;
    const int width = row < end ? static_cast<int>(args.width) : 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int column = groups.template column<T>(p);
      const bool inside = column < width;
      const int64_t at = inside ? begin + column : 0;
      ptx::copy_async_16(stages.at(stage, 0, p), args.dy + at, inside);
      ptx::copy_async_16(stages.at(stage, 1, p), args.x + at, inside);
      if (args.residual) ptx::copy_async_16(stages.at(stage, 2, p), args.residual + at, inside);
    }
    ptx::copy_async_commit();
  };
  const auto inv_of = [&](int64_t row) { return row < end ? args.inv[row] : 0.0f; };
  const auto mean_of = [&](int64_t row) { return kCentre && row < end ? args.mean[row] : 0.0f; };
  float dweight[kPacks][kPack<T>] = {}, dbias[kPacks][kPack<T>] = {};
  if (sums_dx)
#pragma unroll
    for (int p = 0; p < kPacks; ++p) totals.put(p, {}, false);
  fetch(first + groups.group, 0);
  float next_inv = inv_of(first + groups.group), next_mean = mean_of(first + groups.group);
  int turn = 0;
  for (int64_t of_block = first; of_block < end; of_block += Groups::kGroups, ++turn) {
    const int64_t row = of_block + groups.group, begin = row * args.width;
    const int width = row < end ? static_cast<int>(args.width) : 0;  // a row after the last one has no elements
    const int stage = turn % kStages;
    const float inv = next_inv, mean = next_mean;
    fetch(row + Groups::kGroups, (turn + 1) % kStages);
    next_inv = inv_of(row + Groups::kGroups), next_mean = mean_of(row + Groups::kGroups);
    ptx::copy_async_wait<kStages - 1>();
    float means[2] = {};  // of g = dy weight and of g times the normalised x
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      float d[kPack<T>], v[kPack<T>], w[kPack<T>];
      unpack(ptx::load_16(stages.at(stage, 0, p)), d, T{}), unpack(ptx::load_16(stages.at(stage, 1, p)), v, T{});
      unpack(weight(p), w, T{});
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) means[0] += d[i] * w[i], means[1] += d[i] * w[i] * (v[i] - mean) * inv;
    }
    groups.sum(means, exchange, turn);
    if constexpr (kRowWarps == 1) __syncwarp();  // for the compiler: the row is loaded again, and not kept in registers
    const float mean_g = kCentre ? means[0] * share : 0.0f, mean_gn = means[1] * share;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int column = groups.template column<T>(p), left = width - column;
      float d[kPack<T>], v[kPack<T>], w[kPack<T>], r[kPack<T>] = {};
      unpack(ptx::load_16(stages.at(stage, 0, p)), d, T{}), unpack(ptx::load_16(stages.at(stage, 1, p)), v, T{});
      unpack(weight(p), w, T{});
      if (args.residual) unpack(ptx::load_16(stages.at(stage, 2, p)), r, T{});
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        const float n = (v[i] - mean) * inv;
        v[i] = r[i] + inv * (d[i] * w[i] - mean_g - n * mean_gn);
        dweight[p][i] += d[i] * n;
        if constexpr (kCentre) dbias[p][i] += d[i];
      }
      store_pack(args.dx + begin + column, left, v);
      if (sums_dx) totals.put(p, v, true);
    }
  }
  ptx::copy_async_wait<0>();
  __syncthreads();  // no row is read any more, and the sums take their place
  const NormSums<kCentre, T> layout(args);
  const int64_t floats = layout.floats(), of_group = layout.before_dx();
  const Shared<float> sums(bytes, static_cast<int>(Groups::kGroups * of_group));
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int pack = groups.template column<T>(p) / kPack<T>;
    if (pack >= layout.packs) continue;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      const int at = static_cast<int>(groups.group * of_group + i * layout.packs + pack);
      sums[at] = dweight[p][i];
      if constexpr (kCentre) sums[at + static_cast<int>(layout.of_weight())] = dbias[p][i];
    }
  }
  __syncthreads();  // the sums of all groups are there
  for (int64_t at = threadIdx.x; at < of_group; at += Groups::kThreads) {
    float sum = sums[static_cast<int>(at)];
    for (int group = 1; group < Groups::kGroups; ++group) sum += sums[static_cast<int>(group * of_group + at)];
    all_partial[blockIdx.x * floats + at] = sum;
  }
  if (!sums_dx) return;
  const int packs = static_cast<int>(layout.packs);
  for (int at = static_cast<int>(threadIdx.x); at < static_cast<int>(floats - of_group); at += Groups::kThreads) {
    const int pack = at % packs, thread = pack % Groups::kLanes;
    float sum = 0.0f;
    for (int group = 0; group < Groups::kGroups; ++group)
      sum += totals.elems[Totals::place(group * Groups::kLanes + thread, pack / Groups::kLanes, at / packs)];
    all_partial[blockIdx.x * floats + of_group + at] = sum;
  }
}

}  // namespace slipstream::kernels

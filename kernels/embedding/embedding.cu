// SPDX-License-Identifier: Apache-2.0
// Embeddings on CUDA. Rows of equal ids are added by the block of the first of them, in order, so bits never change.

#include <limits>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/entry_points.h"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 256;

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) forward_kernel(EmbeddingForward args) {
  const int64_t packs = (args.width + kPack<T> - 1) / kPack<T>;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = index / packs, column = index % packs * kPack<T>, left = args.width - column;
  if (row >= args.batch * args.tokens) return;
  const int64_t id = args.ids[row] - args.first;
  float v[kPack<T>], p[kPack<T>] = {};
  if (id >= 0 && (args.vocab == 0 || id < args.vocab)) {
    load_floats<kAligned>(static_cast<const T*>(args.table) + id * args.width + column, left, v);
  } else {
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) v[i] = args.part ? 0.0f : __uint_as_float(0x7fffffffu);
  }
  if (args.positions) {
    load_floats<kAligned>(static_cast<const T*>(args.positions) + row % args.tokens * args.width + column, left, p);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) v[i] += p[i];
  }
  store_floats<kAligned>(static_cast<T*>(args.y) + row * args.width + column, left, v);
}

constexpr int kColumnsPerThread = 4;
constexpr int kTile = kThreads * kColumnsPerThread;

/// What the block of the first row of an id does with the sum of its rows.
enum class Finish { add_to_table, add_once_to_table, write_row };

template <typename T>
struct EqualRows {
  const int32_t* ids;  // [count]; below 0 or at least `vocab`: left out
  const T* rows;       // [count, width]
  float* out;          // table [vocab, width], or rows [count, width]
  int32_t* row_ids;    // write_row: [count]
  int64_t count, width, vocab, begin;  // ids count from `begin`
};

/// A block per row; the block of an id's first row sums the rows of that id in order.
template <Finish kFinish, typename T>
__global__ void __launch_bounds__(kThreads) equal_rows_kernel(EqualRows<T> args) {
  __shared__ int32_t match_storage[kThreads], count_storage[kThreads / kWarp];
  const Shared<int32_t> matches(match_storage), counts(count_storage);
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp;
  const int32_t id = args.ids[row];
  const int64_t held = id - args.begin;  // its row of the table
  bool first = held >= 0 && held < args.vocab;
  for (int64_t begin = 0; first && begin < row; begin += kThreads) {
    const bool same = begin + thread < row && args.ids[begin + thread] == id;
    const unsigned votes = __ballot_sync(kWholeWarp, same);
    if (thread % kWarp == 0) counts[warp] = __popc(votes);
    __syncthreads();
    for (int w = 0; w < kThreads / kWarp; ++w) first = first && counts[w] == 0;
    __syncthreads();
  }
  if (kFinish == Finish::write_row && thread == 0) args.row_ids[row] = first ? static_cast<int32_t>(held) : -1;
  if (!first) {
    if (kFinish == Finish::write_row)
      for (int64_t column = thread; column < args.width; column += kThreads) args.out[row * args.width + column] = 0.0f;
    return;
  }
  for (int64_t tile = 0; tile < args.width; tile += kTile) {
    float* out = args.out + (kFinish == Finish::write_row ? row : held) * args.width + tile;
    float sums[kColumnsPerThread];
#pragma unroll
    for (int i = 0; i < kColumnsPerThread; ++i) {
      const int column = i * kThreads + thread;
      sums[i] = kFinish == Finish::add_to_table && tile + column < args.width ? out[column] : 0.0f;
    }
    for (int64_t begin = row; begin < args.count; begin += kThreads) {
      const bool same = begin + thread < args.count && args.ids[begin + thread] == id;
      const unsigned votes = __ballot_sync(kWholeWarp, same);
      if (thread % kWarp == 0) counts[warp] = __popc(votes);
      __syncthreads();
      int before = 0, found = 0;
      for (int w = 0; w < kThreads / kWarp; ++w) {
        const int n = counts[w];
        before += w < warp ? n : 0;
        found += n;
      }
      if (same) matches[before + __popc(votes & ((1u << thread % kWarp) - 1u))] = thread;
      __syncthreads();
      for (int match = 0; match < found; ++match) {
        const T* from = args.rows + (begin + matches[match]) * args.width + tile;
#pragma unroll
        for (int i = 0; i < kColumnsPerThread; ++i) {
          const int column = i * kThreads + thread;
          if (tile + column < args.width) sums[i] += to_float(from[column]);
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kColumnsPerThread; ++i) {
      const int column = i * kThreads + thread;
      if (tile + column < args.width) out[column] = kFinish == Finish::add_once_to_table ? out[column] + sums[i] : sums[i];
    }
  }
}

/// A thread per element of the table adds the rows of its position in order of the batch.
template <typename T>
__global__ void __launch_bounds__(kThreads) position_kernel(PositionBackward args) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= args.positions * args.width) return;
  if (args.accumulate && index >= args.tokens * args.width) return;
  float sum = args.accumulate ? args.dpositions[index] : 0.0f;
  if (index < args.tokens * args.width)
    for (int64_t b = 0; b < args.batch; ++b) sum += to_float(static_cast<const T*>(args.dy)[b * args.tokens * args.width + index]);
  args.dpositions[index] = sum;
}

template <Finish kFinish, typename T>
void add_equal_rows(const LaunchContext& context, const EqualRows<T>& args) {
  if (args.count > 0)
    launch(stream_of(context), equal_rows_kernel<kFinish, T>, dim3(static_cast<unsigned>(args.count)), dim3(kThreads), 0, args);
}

}  // namespace

void embedding_forward_cuda(LaunchContext& context, const EmbeddingForward& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t threads = args.batch * args.tokens * blocks_for(args.width, kPack<T>);
    for_flag(args.width % kPack<T> == 0 && all_aligned(args.table, args.positions, args.y), [&](auto aligned) {
      launch(stream_of(context), forward_kernel<aligned.value, T>, dim3(static_cast<unsigned>(blocks_for(threads, kThreads))), dim3(kThreads), 0, args);
    });
  });
}

void embedding_backward_cuda(LaunchContext& context, const EmbeddingBackward& args) {
  if (!args.accumulate)
    cuda_check(cudaMemsetAsync(args.dtable, 0, static_cast<size_t>(args.vocab * args.width) * sizeof(float), stream_of(context)),
               "zeroing the gradient of the embedding");
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    add_equal_rows<Finish::add_to_table>(context, EqualRows<T>{args.ids, static_cast<const T*>(args.dy), args.dtable, nullptr, args.rows,
                                                               args.width, args.vocab, args.first});
  });
}

void position_backward_cuda(LaunchContext& context, const PositionBackward& args) {
  const dim3 grid(static_cast<unsigned>(blocks_for(args.positions * args.width, kThreads)));
  for_dtype(args.dtype, [&](auto type) {
    launch(stream_of(context), position_kernel<decltype(type)>, grid, dim3(kThreads), 0, args);
  });
}

void embedding_rows_pack_cuda(LaunchContext& context, const EmbeddingRowsPack& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    add_equal_rows<Finish::write_row>(context, EqualRows<T>{args.ids, static_cast<const T*>(args.dy), args.rows, args.row_ids,
                                                            args.tokens_total, args.width, args.part ? args.vocab : int64_t{std::numeric_limits<int32_t>::max()},
                                                            args.part ? args.first : 0});
  });
}

void embedding_rows_add_cuda(LaunchContext& context, const EmbeddingRowsAdd& args) {
  add_equal_rows<Finish::add_once_to_table>(context, EqualRows<float>{args.row_ids, args.rows, args.dtable, nullptr,
                                                                      args.ranks * args.capacity, args.width, args.vocab, 0});
}

}  // namespace slipstream::kernels

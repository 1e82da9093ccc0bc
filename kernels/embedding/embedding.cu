// SPDX-License-Identifier: Apache-2.0
// Embeddings on CUDA. The block of an id's first row adds all rows of that id in order, so bits never change.
//
// These rows are found chunk by chunk: a bit marks whether a chunk of rows may contain an id, so a block reads the ids
// of marked chunks only. The cost of an id grows with the chunks that contain it, and the total with the rows, not with
// their square.

#include <limits>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/workspace.h"
#include "kernels/embedding/embedding_cuda.h"

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

constexpr int kChunk = kThreads;  // rows whose ids a block reads at once
constexpr uint32_t kClassesMost = 1 << 16;

/// Chunks with ids of each class, one bit per chunk. Ids are in one class if they are equal modulo `classes`: a set bit
/// means that an id may be there.
struct ChunksOfIds {
  uint32_t* bits;  // [classes, words]
  int64_t words;
  uint32_t classes;

  __device__ uint32_t* of(int32_t id) const { return bits + static_cast<uint32_t>(id) % classes * words; }
};

/// One thread per row. `bits` are initially zero.
__global__ void __launch_bounds__(kThreads) mark_kernel(const int32_t* ids, int64_t count, ChunksOfIds chunks) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x, chunk = row / kChunk;
  if (row < count && ids[row] >= 0) atomicOr(chunks.of(ids[row]) + chunk / 32, 1u << chunk % 32);
}

/// What the block of an id's first row does with the sum of its rows.
enum class Finish { add_to_table, add_once_to_table, write_row };

template <typename T>
struct EqualRows {
  const int32_t* ids;                  // [count]; below 0 or at least `vocab`: left out
  const T* rows;                       // [count, width]
  float* out;                          // table [vocab, width], or rows [count, width]
  int32_t* row_ids;                    // write_row: [count]
  int64_t count, width, vocab, begin;  // ids count from `begin`
};

/// Number of the rows [begin, end), at most a chunk, that have the id, the same on all threads; matches = which, in
/// order. All threads call it; its first barrier ends the use of the previous matches.
__device__ __forceinline__ int equal_in(const int32_t* ids, int32_t id, int64_t begin, int64_t end,
                                        const Shared<int32_t>& counts, const Shared<int32_t>& matches) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp;
  const bool same = begin + thread < end && ids[begin + thread] == id;
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
  return found;
}

/// One block per row; the block of an id's first row sums the rows of that id in order.
template <Finish kFinish, bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) equal_rows_kernel(EqualRows<T> args, ChunksOfIds chunks) {
  constexpr int kColumns = kPack<T>, kTile = kThreads * kColumns;
  __shared__ int32_t match_storage[kThreads], count_storage[kThreads / kWarp];
  const Shared<int32_t> matches(match_storage), counts(count_storage);
  const int64_t row = blockIdx.x, row_word = row / kChunk / 32;
  const int32_t id = args.ids[row];
  const int64_t held = id - args.begin;  // its row of the table
  const uint32_t* bits = chunks.of(id);
  bool first = held >= 0 && held < args.vocab;
  for (int64_t word = 0; first && word <= row_word; ++word) {
    const unsigned until = word < row_word ? 0xffffffffu : 0xffffffffu >> (31 - row / kChunk % 32);
    for (uint32_t left = bits[word] & until; first && left != 0; left &= left - 1) {
      const int64_t begin = (32 * word + __ffs(static_cast<int>(left)) - 1) * kChunk,
                    end = begin + kChunk < row ? begin + kChunk : row;
      first = equal_in(args.ids, id, begin, end, counts, matches) == 0;
    }
  }
  const int64_t column = int64_t{threadIdx.x} * kColumns;
  if (kFinish == Finish::write_row && threadIdx.x == 0) args.row_ids[row] = first ? static_cast<int32_t>(held) : -1;
  if (!first) {
    const float zeros[kColumns] = {};
    if (kFinish == Finish::write_row)
      for (int64_t at = column; at < args.width; at += kTile)
        store_floats<kAligned>(args.out + row * args.width + at, args.width - at, zeros);
    return;
  }
  for (int64_t tile = 0; tile < args.width; tile += kTile) {
    const int64_t at = tile + column, left_of_row = args.width - at;  // 0 or less: this thread has no column
    float* out = args.out + (kFinish == Finish::write_row ? row : held) * args.width + at;
    float sums[kColumns] = {};
    if (kFinish == Finish::add_to_table && left_of_row > 0) load_floats<kAligned>(out, left_of_row, sums);
    for (int64_t word = row_word; word < chunks.words; ++word) {
      const unsigned from = word > row_word ? 0xffffffffu : 0xffffffffu << row / kChunk % 32;
      for (uint32_t left = bits[word] & from; left != 0; left &= left - 1) {
        const int64_t begin = (32 * word + __ffs(static_cast<int>(left)) - 1) * kChunk,
                      end = begin + kChunk < args.count ? begin + kChunk : args.count;
        const int found = equal_in(args.ids, id, begin, end, counts, matches);
        if (left_of_row > 0) {
#pragma unroll 4
          for (int match = 0; match < found; ++match) {
            float values[kColumns];
            load_floats<kAligned>(args.rows + (begin + matches[match]) * args.width + at, left_of_row, values);
#pragma unroll
            for (int i = 0; i < kColumns; ++i) sums[i] += values[i];
          }
        }
      }
    }
    if (left_of_row <= 0) continue;
    if (kFinish == Finish::add_once_to_table) {
      float table[kColumns];
      load_floats<kAligned>(out, left_of_row, table);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) sums[i] = table[i] + sums[i];
    }
    store_floats<kAligned>(out, left_of_row, sums);
  }
}

/// One thread per pack of the table adds the rows of its position in batch order. Packs consist of positions * width
/// elements.
template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) position_kernel(PositionBackward args) {
  const int64_t index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPack<T>, elems = args.tokens * args.width;
  const int64_t end = args.accumulate ? elems : args.positions * args.width;
  if (index >= end) return;
  float sums[kPack<T>] = {};
  if (args.accumulate) load_floats<kAligned>(args.dpositions + index, end - index, sums);
#pragma unroll 4
  for (int64_t b = 0; b < (index < elems ? args.batch : 0); ++b) {
    float values[kPack<T>];
    load_floats<kAligned>(static_cast<const T*>(args.dy) + b * elems + index, elems - index, values);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) sums[i] += values[i];
  }
  store_floats<kAligned>(args.dpositions + index, end - index, sums);
}

/// Enqueues.
template <Finish kFinish, typename T>
void add_equal_rows(const LaunchContext& context, const EqualRows<T>& args) {
  if (args.count == 0) return;
  ChunksOfIds chunks{static_cast<uint32_t*>(scratch_of(context)), blocks_for(blocks_for(args.count, kChunk), 32),
                     kClassesMost};
  const int64_t fitting = kScratchBytes / 4 / chunks.words;
  if (fitting < kClassesMost) chunks.classes = static_cast<uint32_t>(fitting);
  cuda_check(
      cudaMemsetAsync(chunks.bits, 0, static_cast<size_t>(4 * chunks.words * chunks.classes), stream_of(context)),
      "forgetting which rows have which ids");
  launch(stream_of(context), mark_kernel, dim3(static_cast<unsigned>(blocks_for(args.count, kThreads))), dim3(kThreads),
         0, args.ids, args.count, chunks);
  for_flag(args.width % kPack<T> == 0 && all_aligned(args.rows, args.out), [&](auto aligned) {
    launch(stream_of(context), equal_rows_kernel<kFinish, aligned.value, T>, dim3(static_cast<unsigned>(args.count)),
           dim3(kThreads), 0, args, chunks);
  });
}

}  // namespace

void embedding_forward_cuda(LaunchContext& context, const EmbeddingForward& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t threads = args.batch * args.tokens * blocks_for(args.width, kPack<T>);
    for_flag(args.width % kPack<T> == 0 && all_aligned(args.table, args.positions, args.y), [&](auto aligned) {
      launch(stream_of(context), forward_kernel<aligned.value, T>,
             dim3(static_cast<unsigned>(blocks_for(threads, kThreads))), dim3(kThreads), 0, args);
    });
  });
}

void embedding_backward_cuda(LaunchContext& context, const EmbeddingBackward& args) {
  if (!args.accumulate)
    cuda_check(cudaMemsetAsync(args.dtable, 0, static_cast<size_t>(args.vocab * args.width) * sizeof(float),
                               stream_of(context)),
               "zeroing the gradient of the embedding");
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    add_equal_rows<Finish::add_to_table>(context, EqualRows<T>{args.ids, static_cast<const T*>(args.dy), args.dtable,
                                                               nullptr, args.rows, args.width, args.vocab, args.first});
  });
}

void position_backward_cuda(LaunchContext& context, const PositionBackward& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    const dim3 grid(static_cast<unsigned>(blocks_for(args.positions * args.width, kThreads * kPack<T>)));
    for_flag(args.width % kPack<T> == 0 && all_aligned(args.dy, args.dpositions), [&](auto aligned) {
      launch(stream_of(context), position_kernel<aligned.value, T>, grid, dim3(kThreads), 0, args);
    });
  });
}

void embedding_rows_pack_cuda(LaunchContext& context, const EmbeddingRowsPack& args) {
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    add_equal_rows<Finish::write_row>(
        context, EqualRows<T>{args.ids, static_cast<const T*>(args.dy), args.rows, args.row_ids, args.tokens_total,
                              args.width, args.part ? args.vocab : int64_t{std::numeric_limits<int32_t>::max()},
                              args.part ? args.first : 0});
  });
}

void embedding_rows_add_cuda(LaunchContext& context, const EmbeddingRowsAdd& args) {
  add_equal_rows<Finish::add_once_to_table>(
      context, EqualRows<float>{args.row_ids, args.rows, args.dtable, nullptr, args.ranks * args.capacity, args.width,
                                args.vocab, 0});
}

}  // namespace slipstream::kernels

// SPDX-License-Identifier: Apache-2.0
// Embeddings on CUDA. All rows of an id are added in order, and each column by one thread, so the bits never change.
//
// The warp of an id's first row finds the rows of the id. If they are few, it adds them itself. Otherwise it puts the
// id on a list, and blocks of a second kernel share the width of each listed id. In token text the most frequent id has
// about 5 % of the rows. These are 3000 of 65536, a chain of additions of 7 us per column, in which one warp would wait
// for every load.
// Rows are found chunk by chunk. A bit marks whether a chunk of rows may contain an id, so a warp reads only the ids of
// marked chunks. The cost of an id grows with the chunks that contain it, and the total with the rows, not with their
// square.

#include <algorithm>
#include <limits>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/workspace.h"
#include "kernels/embedding/embedding.h"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

__global__ void __launch_bounds__(kThreads) document_positions_kernel(DocumentPositions args, Positions places) {
  ptx::after_earlier_kernels();
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row < args.batch * args.tokens)
    args.positions[row] = static_cast<int32_t>(places.of(row % args.tokens)) - args.begins[row];
}

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) forward_kernel(EmbeddingForward args) {
  ptx::after_earlier_kernels();
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
    const int64_t place = args.position_ids ? args.position_ids[row] : row % args.tokens;
    const bool known = args.position_ids == nullptr || (place >= 0 && place < args.position_rows);
    if (known) load_floats<kAligned>(static_cast<const T*>(args.positions) + place * args.width + column, left, p);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) v[i] += known ? p[i] : __uint_as_float(0x7fffffffu);
  }
  store_floats<kAligned>(static_cast<T*>(args.y) + row * args.width + column, left, v);
}

constexpr int kChunk = 256;           // the rows of a bit
constexpr int kWindow = 32 * kChunk;  // the rows of a word of bits
constexpr int kFew = 64;              // the most rows of an id that one warp adds
constexpr uint32_t kClassesMost = 1 << 16;

/// The chunks with ids of each class, one bit per chunk. Ids are in one class if they are equal modulo `classes`. A set
/// bit means that an id may be in the chunk.
struct ChunksOfIds {
  uint32_t* bits;  // [classes, words]
  int64_t words;
  uint32_t classes;

  __device__ uint32_t* of(int32_t id) const { return bits + static_cast<uint32_t>(id) % classes * words; }
};

/// Runs one thread per row. `bits` are initially zero.
__global__ void __launch_bounds__(kThreads) mark_kernel(const int32_t* ids, int64_t count, ChunksOfIds chunks) {
  ptx::after_earlier_kernels();
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x, chunk = row / kChunk;
  if (row < count && ids[row] >= 0) atomicOr(chunks.of(ids[row]) + chunk / 32, 1u << chunk % 32);
}

/// The destination of the sum of an id's rows.
enum class Finish { add_to_table, add_once_to_table, write_row };

template <typename T>
struct EqualRows {
  const int32_t* ids;                  // [count]; below 0 or at least `vocab`: left out
  const T* rows;                       // [count, width]
  float* out;                          // table [vocab, width], or rows [count, width]
  int32_t* row_ids;                    // write_row: [count]
  int64_t count, width, vocab, begin;  // ids count from `begin`
};

/// The ids that have more than kFew rows, by their first rows, in any order, because each is added alone.
struct FrequentIds {
  int32_t* count;
  int32_t* first_rows;
};

constexpr int kParts = kChunk / kWarp;

/// Finds which rows before `end` have the id, chunk by chunk: bit i of votes[c][p] is row begins[c] + 32 p + i.
template <int kChunks>
__device__ __forceinline__ void rows_with(const int32_t* ids, int32_t id, const int (&begins)[kChunks], int end,
                                          unsigned (&votes)[kChunks][kParts]) {
  int32_t others[kChunks][kParts];  // all loads before the first vote
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk)
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int row = begins[chunk] + part * kWarp + static_cast<int>(threadIdx.x) % kWarp;
      others[chunk][part] = row < end ? ids[row] : ~id;
    }
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk)
#pragma unroll
    for (int part = 0; part < kParts; ++part) votes[chunk][part] = __ballot_sync(kWholeWarp, others[chunk][part] == id);
}

/// The first rows of the marked chunks of an id, in order.
struct MarkedChunks {
  const uint32_t* bits;
  int words, word;
  uint32_t left;  // of the current word

  /// Returns `none` after the last one.
  __device__ __forceinline__ int next(int none) {
    while (left == 0) {
      if (word + 1 >= words) return none;
      left = bits[++word];
    }
    const int begin = word * kWindow + (__ffs(static_cast<int>(left)) - 1) * kChunk;
    left &= left - 1;
    return begin;
  }
};

/// Adds columns [at, at + kPack) of an id's rows to the destination. `row_at(i)` is row i of the `found` ones.
template <Finish kFinish, bool kAligned, typename T, typename RowAt>
__device__ __forceinline__ void add_rows(const EqualRows<T>& args, float* out, int64_t at, int found,
                                         const RowAt& row_at) {
  constexpr int kColumns = kPack<T>;
  const int64_t left = args.width - at;
  float sums[kColumns] = {};
  if (kFinish == Finish::add_to_table) load_floats<kAligned>(out + at, left, sums);
#pragma unroll 4
  for (int i = 0; i < found; ++i) {
    float values[kColumns];
    load_floats<kAligned>(args.rows + row_at(i) * args.width + at, left, values);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sums[c] += values[c];
  }
  if (kFinish == Finish::add_once_to_table) {
    float table[kColumns];
    load_floats<kAligned>(out + at, left, table);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sums[c] = table[c] + sums[c];
  }
  store_floats<kAligned>(out + at, left, sums);
}

/// Runs one warp per row. The warp of an id's first row adds the id's rows if they are at most kFew, and otherwise
/// lists the id.
template <Finish kFinish, bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads, 5)
    few_rows_kernel(EqualRows<T> args, ChunksOfIds chunks, FrequentIds frequent) {
  ptx::after_earlier_kernels();
  __shared__ int32_t storage[kWarps * kFew];
  constexpr int kChunksAtOnce = 2;
  const Shared<int32_t> all_rows(storage);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, mine = static_cast<int>(threadIdx.x) / kWarp * kFew;
  const int row = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / kWarp), row_word = row / kWindow,
            count = static_cast<int>(args.count);
  if (row >= count) return;  // the whole warp
  const int32_t id = args.ids[row];
  const int64_t held = id - args.begin;  // its row in the table
  const uint32_t* bits = chunks.of(id);
  bool first = held >= 0 && held < args.vocab;
  MarkedChunks earlier = {bits, row_word + 1, 0, bits[0]};
  for (int begin = earlier.next(row); first && begin < row; begin = earlier.next(row)) {
    unsigned votes[1][kParts], seen = 0;
    rows_with(args.ids, id, {begin}, row, votes);
#pragma unroll
    for (int part = 0; part < kParts; ++part) seen |= votes[0][part];
    first = seen == 0;
  }
  float* const out = args.out + (kFinish == Finish::write_row ? int64_t{row} : held) * args.width;
  if (kFinish == Finish::write_row && lane == 0) args.row_ids[row] = first ? static_cast<int32_t>(held) : -1;
  const int64_t column = int64_t{lane} * kPack<T>;
  if (!first) {
    const float zeros[kPack<T>] = {};
    if (kFinish == Finish::write_row)
      for (int64_t at = column; at < args.width; at += kWarp * kPack<T>)
        store_floats<kAligned>(out + at, args.width - at, zeros);
    return;
  }
  MarkedChunks chunk = {bits, static_cast<int>(chunks.words), row_word,
                        bits[row_word] & 0xffffffffu << row / kChunk % 32};
  int found = 0;
  int begins[kChunksAtOnce] = {chunk.next(count)};
  while (found <= kFew && begins[0] < count) {
#pragma unroll
    for (int c = 1; c < kChunksAtOnce; ++c) begins[c] = chunk.next(count);
    unsigned votes[kChunksAtOnce][kParts];
    rows_with(args.ids, id, begins, count, votes);
#pragma unroll
    for (int c = 0; c < kChunksAtOnce; ++c)
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int at = found + __popc(votes[c][part] & ((1u << lane) - 1u));
        if ((votes[c][part] >> lane & 1u) != 0 && at < kFew) all_rows[mine + at] = begins[c] + part * kWarp + lane;
        found += __popc(votes[c][part]);
      }
    begins[0] = chunk.next(count);
  }
  if (found > kFew) {
    if (lane == 0) frequent.first_rows[atomicAdd(frequent.count, 1)] = row;
    return;
  }
  __syncwarp();  // all rows are listed
  for (int64_t at = column; at < args.width; at += kWarp * kPack<T>)
    add_rows<kFinish, kAligned>(args, out, at, found, [&](int i) { return int64_t{all_rows[mine + i]}; });
}

/// The dynamic shared memory of frequent_rows_kernel: the rows of a slice of the width on their way to the threads that
/// add them, and the numbers of the rows of a window that have the id.
template <typename T>
struct FrequentTile {
  static constexpr int kColumns = 64,  // of a slice
      kRowPacks = kColumns / kPack<T>, kRowsAtOnce = kThreads / kRowPacks, kLoads = 4, kRows = kLoads * kRowsAtOnce,
                       kElems = kRows * kColumns, kBytes = kElems * static_cast<int>(sizeof(T)) + 2 * kWindow;
  static_assert(kWindow / 32 == kThreads, "a thread lists the rows of one word");
};

/// Lists the rows of the window from `begin` on that have the id, in order. Returns their number, which is the same on
/// all threads. `mark` is the window's word of bits.
__device__ __forceinline__ int list_rows(const int32_t* ids, int32_t id, int begin, int end, uint32_t mark,
                                         const Shared<uint16_t>& rows) {
  __shared__ uint32_t word_storage[kThreads], count_storage[kWarps];
  const Shared<uint32_t> words(word_storage), counts(count_storage);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
#pragma unroll
  for (int chunk = warp; chunk < 32; chunk += kWarps) {
    unsigned votes[1][kParts];
    rows_with(ids, id, {begin + chunk * kChunk}, mark >> chunk & 1u ? end : 0, votes);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      if (lane == part) words[chunk * kParts + part] = votes[0][part];
  }
  __syncthreads();  // all words are there
  const uint32_t mine = words[thread];
  int before = __popc(mine);
#pragma unroll
  for (int delta = 1; delta < kWarp; delta *= 2) {
    const int other = __shfl_up_sync(kWholeWarp, before, static_cast<unsigned>(delta));
    before += lane >= delta ? other : 0;
  }
  if (lane == kWarp - 1) counts[warp] = static_cast<uint32_t>(before);
  before -= __popc(mine);
  __syncthreads();  // all counts are there
  int found = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const int n = static_cast<int>(counts[w]);
    before += w < warp ? n : 0;
    found += n;
  }
  for (uint32_t left = mine; left != 0; left &= left - 1)
    rows[before++] = static_cast<uint16_t>(thread * 32 + __ffs(static_cast<int>(left)) - 1);
  __syncthreads();  // all rows are there
  return found;
}

/// Blocks (slice of the width, turn) add the rows of the listed ids. All threads of a block load rows of the slice, one
/// tile ahead, and one thread per column adds them in order.
template <Finish kFinish, bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads)
    frequent_rows_kernel(EqualRows<T> args, ChunksOfIds chunks, FrequentIds frequent) {
  ptx::after_earlier_kernels();
  using Tile = FrequentTile<T>;
  SLIP_DYNAMIC_SHARED(bytes);
  const Shared<T> tile(bytes, Tile::kElems);
  const Shared<uint16_t> rows(bytes + Tile::kElems * sizeof(T), kWindow);
  const int thread = static_cast<int>(threadIdx.x), pack = thread % Tile::kRowPacks,
            lane_row = thread / Tile::kRowPacks;
  const int64_t slice = int64_t{blockIdx.x} * Tile::kColumns, from = slice + pack * kPack<T>, column = slice + thread;
  const bool adds = thread < Tile::kColumns && column < args.width;
  const int listed = *frequent.count;
  for (int turn = static_cast<int>(blockIdx.y); turn < listed; turn += static_cast<int>(gridDim.y)) {
    const int row = frequent.first_rows[turn];
    const int32_t id = args.ids[row];
    const uint32_t* bits = chunks.of(id);
    float* const out = args.out + (kFinish == Finish::write_row ? row : id - args.begin) * args.width + column;
    float sum = kFinish == Finish::add_to_table && adds ? *out : 0.0f;
    for (int word = row / kWindow; word < chunks.words; ++word) {
      if (bits[word] == 0) continue;
      const int begin = word * kWindow;
      const int found = list_rows(args.ids, id, begin, static_cast<int>(args.count), bits[word], rows);
      ptx::Words ahead[Tile::kLoads];
      const auto load = [&](int first) {
#pragma unroll
        for (int i = 0; i < Tile::kLoads; ++i) {
          const int at = first + i * Tile::kRowsAtOnce + lane_row;
          ahead[i] = {};
          if (at >= found || from >= args.width) continue;
          const T* p = args.rows + int64_t{begin + rows[at]} * args.width + from;
          if constexpr (kAligned) {
            ahead[i] = ptx::load_16(p);
          } else {
            float values[kPack<T>];
            load_floats<false>(p, args.width - from, values);
            ahead[i] = packed(values, T{});  // exact
          }
        }
      };
      load(0);
      for (int first = 0; first < found; first += Tile::kRows) {
#pragma unroll
        for (int i = 0; i < Tile::kLoads; ++i)
          ptx::store_16(tile.at(((i * Tile::kRowsAtOnce + lane_row) * Tile::kRowPacks + pack) * kPack<T>), ahead[i]);
        __syncthreads();  // the tile is full
        load(first + Tile::kRows);
        const int rows_here = found - first < Tile::kRows ? found - first : Tile::kRows;
        if (adds)
#pragma unroll 8
          for (int i = 0; i < rows_here; ++i) sum += to_float(tile[i * Tile::kColumns + thread]);
        __syncthreads();  // the tile is free
      }
    }
    if (adds) *out = kFinish == Finish::add_once_to_table ? *out + sum : sum;
  }
}

/// One thread per pack of the table adds the rows of its position in batch order. A pack consists of elements of
/// positions * width.
template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) position_kernel(PositionBackward args) {
  ptx::after_earlier_kernels();
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
  constexpr int64_t kTurnsMost = 128;  // blocks of a slice that share the frequent ids
  if (args.count == 0) return;
  auto* const scratch = static_cast<int32_t*>(scratch_of(context));
  const int64_t frequent_most = args.count / (kFew + 1);
  const FrequentIds frequent{scratch, scratch + 1};
  ChunksOfIds chunks{reinterpret_cast<uint32_t*>(scratch + 1 + frequent_most), blocks_for(args.count, kWindow),
                     kClassesMost};
  const int64_t fitting = (kScratchBytes / 4 - 1 - frequent_most) / chunks.words;
  if (fitting < kClassesMost) chunks.classes = static_cast<uint32_t>(fitting);
  cuda_check(
      cudaMemsetAsync(scratch, 0, static_cast<size_t>(4 * (1 + frequent_most + chunks.words * int64_t{chunks.classes})),
                      stream_of(context)),
      "forgetting which rows have which ids");
  launch(stream_of(context), mark_kernel, dim3(static_cast<unsigned>(blocks_for(args.count, kThreads))), dim3(kThreads),
         0, args.ids, args.count, chunks);
  for_flag(args.width % kPack<T> == 0 && all_aligned(args.rows, args.out), [&](auto aligned) {
    launch(stream_of(context), few_rows_kernel<kFinish, aligned.value, T>,
           dim3(static_cast<unsigned>(blocks_for(args.count, kWarps))), dim3(kThreads), 0, args, chunks, frequent);
    if (frequent_most == 0 || args.width == 0) return;
    const dim3 grid(static_cast<unsigned>(blocks_for(args.width, FrequentTile<T>::kColumns)),
                    static_cast<unsigned>(std::min(frequent_most, kTurnsMost)));
    launch(stream_of(context), frequent_rows_kernel<kFinish, aligned.value, T>, grid, dim3(kThreads),
           static_cast<size_t>(FrequentTile<T>::kBytes), args, chunks, frequent);
  });
}

}  // namespace

void document_positions_cuda(LaunchContext& context, const DocumentPositions& args) {
  launch(stream_of(context), document_positions_kernel,
         dim3(static_cast<unsigned>(blocks_for(args.batch * args.tokens, kThreads))), dim3(kThreads), 0, args,
         Positions(args.chunks));
}

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

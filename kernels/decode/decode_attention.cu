// SPDX-License-Identifier: Apache-2.0
// Attention of one new token of each of several sequences on CUDA. A block of threads reads the keys and values of one
// part of a sequence, once for all heads that share them. A second kernel combines the parts.

#include "kernels/cuda/common.cuh"
#include "kernels/decode/decode_cuda.h"

namespace slipstream::kernels {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp, kCombineThreads = 128;
constexpr int kTokens = kPartTokens, kBlock = kKeyBlock;
constexpr int kQuad = 4;       // columns of values that a thread loads at once
constexpr int kHeadsMost = 8;  // heads that share loads; more heads take turns
constexpr int kHeadDimMax = kDecodeHeadDimMax;
static_assert(kTokens == kWarps * kBlock);  // a warp scores one block of keys

struct Attend {
  const float* qkv;
  float* out;
  float* workspace;  // [rows, heads, most_parts] of part_floats()
  void* cache;
  int64_t capacity;  // tokens of a sequence
  const int32_t* sequences;
  const int32_t* tokens;
  int64_t window, heads, kv_heads, head_dim, most_parts;
  float scale;
};

/// The visible tokens of a row, and its parts. The first part begins where the block of keys of the first token begins.
struct Row {
  int token, begin, first_part, parts;

  __device__ __forceinline__ Row(const Attend& args, unsigned row)
      : token(args.tokens[row]),
        begin(args.window > 0 && token >= args.window ? token + 1 - static_cast<int>(args.window) : 0),
        first_part(begin / kBlock * kBlock),
        parts((token - first_part) / kTokens + 1) {}
};

/// Keys and values of one sequence and key-value head.
template <typename T>
struct Kept {
  T* keys;
  T* values;

  __device__ __forceinline__ Kept(T* cache, int64_t capacity, int64_t sequence, int64_t kv_heads, int64_t kv_head,
                                  int64_t head_dim)
      : keys(cache + 2 * (sequence * kv_heads + kv_head) * capacity * head_dim), values(keys + capacity * head_dim) {}

  __device__ __forceinline__ void keep(int64_t head_dim, int64_t token, int64_t i, float k, float v) const {
    keys[(token / kBlock * head_dim + i) * kBlock + token % kBlock] = from_float<T>(k);
    values[token * head_dim + i] = from_float<T>(v);
  }
};

/// values = p[0..kQuad), with zeros from `count` on. With `kAligned`, `p` is a multiple of their bytes.
template <bool kAligned>
__device__ __forceinline__ void load_quad(const float* p, int64_t count, float (&values)[kQuad]) {
  load_floats<kAligned>(p, count, values);
}
template <bool kAligned>
__device__ __forceinline__ void load_quad(const bfloat16* p, int64_t count, float (&values)[kQuad]) {
  if (kAligned && count >= kQuad) {
    const uint64_t words = ptx::load_8(p);
#pragma unroll
    for (int i = 0; i < kQuad; ++i) values[i] = __uint_as_float(static_cast<uint32_t>(words >> 16 * i) << 16);
  } else {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) values[i] = i < count ? to_float(p[i]) : 0.0f;
  }
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int bits = kWarp / 2; bits > 0; bits /= 2) value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, bits));
  return value;
}

/// Runs one thread for each element of k and of v.
template <typename T>
__global__ void __launch_bounds__(kThreads) keep_kernel(KeepKeys args) {
  ptx::after_earlier_kernels();
  const int64_t width = args.kv_heads * args.head_dim, index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = index / width, column = index % width;
  if (row >= args.rows) return;
  const int64_t at = row * args.row_stride + column;
  const Kept<T> kept(static_cast<T*>(args.to.at), args.to.capacity, args.sequence, args.kv_heads,
                     column / args.head_dim, args.head_dim);
  kept.keep(args.head_dim, args.first + row, column % args.head_dim, args.k[at], args.v[at]);
}

/// The part of a block of threads. Its tokens [low, high), counted from its first one, are visible.
template <typename T>
struct Part {
  const T* keys;    // of the first token of the part
  const T* values;  // of the first token of the part
  int low, high, head_dim;
};

/// A warp scores one block of keys with kHeads queries. It loads 16 bytes of several dimensions at once, or 8 where
/// more sums would not fit into the registers. Hidden tokens get -infinity.
template <int kHeads, typename T>
__device__ __forceinline__ void score(const Part<T>& part, const Shared<float>& queries, const Shared<float>& weights) {
  constexpr int kLoaded = kHeads * kPack < T >> 32 ? kQuad : kPack<T>;  // the tokens of a lane
  constexpr int kAcross = kBlock / kLoaded, kAtOnce = kWarp / kAcross;  // the lanes of a dimension, and the dimensions
  static_assert(kHeads <= kAtOnce);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, block = static_cast<int>(threadIdx.x) / kWarp * kBlock;
  const int dim = lane / kAcross, token = lane % kAcross * kLoaded;
  float sums[kHeads][kLoaded] = {};
  if (block < part.high) {
    const T* const keys = part.keys + block * part.head_dim + token;
#pragma unroll 4
    for (int i = dim; i < part.head_dim; i += kAtOnce) {
      float k[kLoaded];
      if constexpr (kLoaded == kPack<T>)
        unpack(ptx::load_16(keys + i * kBlock), k, T{});
      else
        load_quad<true>(keys + i * kBlock, kQuad, k);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float q = queries[h * part.head_dim + i];
#pragma unroll
        for (int t = 0; t < kLoaded; ++t) sums[h][t] += q * k[t];
      }
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h)
#pragma unroll
    for (int t = 0; t < kLoaded; ++t) {
      float sum = sums[h][t];
#pragma unroll
      for (int bits = kAcross; bits < kWarp; bits *= 2) sum += __shfl_xor_sync(kWholeWarp, sum, bits);
      const int at = block + token + t;
      if (dim == h) weights[h * kTokens + at] = at >= part.low && at < part.high ? sum : -__builtin_inff();
    }
}

/// A warp replaces the scores of one head by their exponentials. statistics: the largest score and the sum, of all
/// heads.
template <int kHeads>
__device__ __forceinline__ void exponentials(const Shared<float>& weights, const Shared<float>& statistics) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, head = static_cast<int>(threadIdx.x) / kWarp;
  if (head >= kHeads) return;
  float values[kTokens / kWarp], top = -__builtin_inff(), total = 0.0f;
#pragma unroll
  for (int i = 0; i < kTokens / kWarp; ++i) {
    values[i] = weights[head * kTokens + i * kWarp + lane];
    top = fmaxf(top, values[i]);
  }
  top = warp_max(top);
#pragma unroll
  for (int i = 0; i < kTokens / kWarp; ++i) {
    const float weight = expf(values[i] - top);
    weights[head * kTokens + i * kWarp + lane] = weight;
    total += weight;
  }
  total = warp_sum(total);
  if (lane == 0) statistics[2 * head] = top, statistics[2 * head + 1] = total;
}

/// Threads share the columns in packs of kQuad, and the tokens.
struct Columns {
  int packs, groups, pack, group;
  __device__ explicit Columns(int head_dim)
      : packs((head_dim + kQuad - 1) / kQuad),
        groups(kThreads / packs),
        pack(static_cast<int>(threadIdx.x) % packs),
        group(static_cast<int>(threadIdx.x) / packs) {}
};

/// sums[group, head, i, pack] = the sum of weight times value over the tokens of the group.
template <int kHeads, bool kAligned, typename T>
__device__ __forceinline__ void add_values(const Part<T>& part, const Columns& columns, const Shared<float>& weights,
                                           const Shared<float>& sums) {
  if (columns.group >= columns.groups) return;
  float of_heads[kHeads][kQuad] = {};
  const int column = columns.pack * kQuad;
#pragma unroll 4
  for (int s = part.low + columns.group; s < part.high; s += columns.groups) {
    float v[kQuad];
    load_quad<kAligned>(part.values + s * part.head_dim + column, part.head_dim - column, v);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float weight = weights[h * kTokens + s];
#pragma unroll
      for (int i = 0; i < kQuad; ++i) of_heads[h][i] += weight * v[i];
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h)
#pragma unroll
    for (int i = 0; i < kQuad; ++i)
      sums[((columns.group * kHeads + h) * kQuad + i) * columns.packs + columns.pack] = of_heads[h][i];
}

/// Runs one block for each part, key-value head and row. Blocks of parts that a row does not have return. A row with
/// one part gets its result at once.
template <int kHeads, bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads, kHeads == 1 ? 3 : 2) attend_kernel(Attend args) {
  ptx::after_earlier_kernels();
  __shared__ float of_queries[kHeads * kHeadDimMax], of_weights[kHeads * kTokens], of_sums[kHeads * kThreads * kQuad],
      of_statistics[kHeads * 2];
  const Shared<float> queries(of_queries), weights(of_weights), sums(of_sums), statistics(of_statistics);
  const Row row(args, blockIdx.z);
  const int first = row.first_part + static_cast<int>(blockIdx.x) * kTokens;
  const int64_t kv_head = blockIdx.y;
  if (first > row.token) return;  // the whole block
  const int thread = static_cast<int>(threadIdx.x), head_dim = static_cast<int>(args.head_dim);
  const int group = static_cast<int>(args.heads / args.kv_heads);
  const Kept<T> kept(static_cast<T*>(args.cache), args.capacity, args.sequences[blockIdx.z], args.kv_heads, kv_head,
                     head_dim);
  const Part<T> part{.keys = kept.keys + int64_t{first} * head_dim,
                     .values = kept.values + int64_t{first} * head_dim,
                     .low = row.begin > first ? row.begin - first : 0,
                     .high = row.token + 1 - first < kTokens ? row.token + 1 - first : kTokens,
                     .head_dim = head_dim};
  const float* const qkv = args.qkv + blockIdx.z * (args.heads + 2 * args.kv_heads) * head_dim;
  const float* const k = qkv + (args.heads + kv_head) * head_dim;
  for (int i = thread; i < head_dim && row.token < first + kTokens; i += kThreads)
    kept.keep(head_dim, row.token, i, k[i], k[args.kv_heads * head_dim + i]);
  const Columns columns(head_dim);
  const int of_group = kHeads * kQuad * columns.packs;
  for (int turn = 0; turn < group; turn += kHeads) {
    const int64_t head = kv_head * group + turn;
    for (int i = thread; i < kHeads * head_dim; i += kThreads)
      queries[i] = turn + i / head_dim < group ? qkv[head * head_dim + i] * args.scale : 0.0f;
    __syncthreads();  // the queries, and the new token in the cache, are there
    score<kHeads>(part, queries, weights);
    __syncthreads();  // all scores are there
    exponentials<kHeads>(weights, statistics);
    __syncthreads();  // all weights are there
    add_values<kHeads, kAligned>(part, columns, weights, sums);
    __syncthreads();  // the sums of all groups are there
    for (int i = thread; i < of_group; i += kThreads) {
      const int h = i / (kQuad * columns.packs), place = i % (kQuad * columns.packs);
      const int column = place % columns.packs * kQuad + place / columns.packs;
      if (turn + h >= group || column >= head_dim) continue;
      float sum = sums[i];
      for (int g = 1; g < columns.groups; ++g) sum += sums[g * of_group + i];
      const int64_t item = blockIdx.z * args.heads + head + h;
      if (row.parts == 1) {
        args.out[item * head_dim + column] = sum / statistics[2 * h + 1];
        continue;
      }
      float* const to = args.workspace + (item * args.most_parts + blockIdx.x) * (head_dim + 2);
      to[column] = sum;
      if (column < 2) to[head_dim + column] = statistics[2 * h + column];
    }
  }
}

/// Runs one block for each head and row. It adds the values of the parts, weighted by their largest scores and sums.
__global__ void __launch_bounds__(kCombineThreads) combine_kernel(Attend args) {
  ptx::after_earlier_kernels();
  const int64_t parts = Row(args, blockIdx.y).parts, item = blockIdx.y * args.heads + blockIdx.x;
  if (parts == 1) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, head_dim = static_cast<int>(args.head_dim);
  const int64_t floats = head_dim + 2;
  const float* const from = args.workspace + item * args.most_parts * floats;
  float top = -__builtin_inff(), total = 0.0f;  // the same in every warp
  for (int64_t p = lane; p < parts; p += kWarp) top = fmaxf(top, from[p * floats + head_dim]);
  top = warp_max(top);
  for (int64_t p = lane; p < parts; p += kWarp)
    total += expf(from[p * floats + head_dim] - top) * from[p * floats + head_dim + 1];
  total = warp_sum(total);
  for (int column = static_cast<int>(threadIdx.x); column < head_dim; column += kCombineThreads) {
    float sum = 0.0f;
#pragma unroll 4
    for (int64_t p = 0; p < parts; ++p) sum += expf(from[p * floats + head_dim] - top) * from[p * floats + column];
    args.out[item * head_dim + column] = sum / total;
  }
}

/// Enqueues. The grid has all parts that a row may have, because the host does not know the tokens.
template <int kHeads, typename T>
void attend(const LaunchContext& context, const Attend& args, int64_t rows) {
  const dim3 grid(static_cast<unsigned>(args.most_parts), static_cast<unsigned>(args.kv_heads),
                  static_cast<unsigned>(rows));
  for_flag(args.head_dim % kQuad == 0, [&](auto aligned) {
    launch(stream_of(context), attend_kernel<kHeads, aligned.value, T>, grid, dim3(kThreads), 0, args);
  });
  if (args.most_parts > 1)
    launch(stream_of(context), combine_kernel, dim3(static_cast<unsigned>(args.heads), static_cast<unsigned>(rows)),
           dim3(kCombineThreads), 0, args);
}

}  // namespace

void keep_keys_cuda(LaunchContext& context, const KeepKeys& args) {
  const dim3 blocks(static_cast<unsigned>(blocks_for(args.rows * args.kv_heads * args.head_dim, kThreads)));
  for_dtype(args.to.dtype, [&](auto type) {
    launch(stream_of(context), keep_kernel<decltype(type)>, blocks, dim3(kThreads), 0, args);
  });
}

void one_token_attention_cuda(LaunchContext& context, const OneTokenAttention& args) {
  const int64_t group = args.heads / args.kv_heads;
  for_dtype(args.cache.dtype, [&](auto type) {
    using T = decltype(type);
    const Attend all{.qkv = args.qkv,
                     .out = args.out,
                     .workspace = args.scores,
                     .cache = args.cache.at,
                     .capacity = args.cache.capacity,
                     .sequences = args.sequences,
                     .tokens = args.tokens,
                     .window = args.window,
                     .heads = args.heads,
                     .kv_heads = args.kv_heads,
                     .head_dim = args.head_dim,
                     .most_parts = most_parts(args),
                     .scale = args.scale};
    group == 1   ? attend<1, T>(context, all, args.rows)
    : group <= 4 ? attend<4, T>(context, all, args.rows)
                 : attend<kHeadsMost, T>(context, all, args.rows);
  });
}

}  // namespace slipstream::kernels

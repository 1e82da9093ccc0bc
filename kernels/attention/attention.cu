// SPDX-License-Identifier: Apache-2.0
// Attention on CUDA for any head size up to 256 and for both types. Blocks of 32 queries by 32 keys use shared memory.
// Heads wider than 128 have blocks of 16 by 16, so that a block fits in the 99 KiB of the smallest GPUs.
//
// Four or eight neighbouring threads of a warp share a row: each owns every fourth, or eighth, of its columns. The
// tensor core paths (attention_hopper_*.cu, attention_mma_*.cu) handle bf16 heads of 64 and 128 whose rows are aligned
// to 16 bytes.

#include <initializer_list>
#include <type_traits>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/attention_path.h"
#include "kernels/attention/masks.cuh"
#include "kernels/cuda/common.cuh"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 128;
// The blocks per multiprocessor for which registers are chosen: as many as leave every instance without spills
// (kernels/sass_budget.csv).
constexpr int kBlocks = 5, kQueryBlocks = 4;

/// The floats of a row in shared memory: one more than the row has, so that the elements of a column are in different
/// banks.
__host__ __device__ constexpr int pitch_of(int head_dim) { return head_dim + 1; }

/// A block: kRows queries by kRows keys, with at most kParts * kColumns columns.
template <int kRows_, int kColumns_>
struct TileOf {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;       // per thread
  static constexpr int kParts = kThreads / kRows;  // threads per row
  static constexpr int kKeys = kRows / kParts;     // scores per thread
  static constexpr int kScorePitch = kRows + 1;
  static constexpr int kScoreFloats = kRows * kScorePitch;
  static_assert(kWarp % kParts == 0, "the threads of a row exchange values by shuffles and meet at __syncwarp");

  __host__ __device__ static constexpr int floats(int head_dim) { return kRows * pitch_of(head_dim); }
};

/// tile = rows [begin, begin + kRows) as float, with zeros from `tokens` on. With `kAligned`, head_dim and stride are
/// whole packs, and 16 bytes are read at once.
template <int kRows, bool kAligned, typename T>
__device__ __forceinline__ void load_tile(const Shared<float>& tile, const T* from, int64_t stride, int64_t begin,
                                          int64_t tokens, int head_dim) {
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (kAligned) {
    // A warp loads kPack rows of kAcross packs. Because the pitch is odd, its threads write to 32 different banks.
    constexpr int kAcross = kWarp / kPack<T>;
    static_assert(kRows % kPack<T> == 0);
    const int lane = thread % kWarp, packs = head_dim / kPack<T>, across = (packs + kAcross - 1) / kAcross;
    for (int i = thread / kWarp; i < kRows / kPack<T> * across; i += kThreads / kWarp) {
      const int row = i / across * kPack<T> + lane / kAcross, pack = i % across * kAcross + lane % kAcross;
      if (pack >= packs) continue;
      const int column = pack * kPack<T>;
      float values[kPack<T>] = {};
      if (begin + row < tokens) unpack(ptx::load_16(from + (begin + row) * stride + column), values, T{});
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) tile[row * pitch_of(head_dim) + column + j] = values[j];
    }
  } else {
    for (int i = thread; i < kRows * head_dim; i += kThreads) {
      const int row = i / head_dim, column = i % head_dim;
      tile[row * pitch_of(head_dim) + column] =
          begin + row < tokens ? to_float(from[(begin + row) * stride + column]) : 0.0f;
    }
  }
}

__device__ __forceinline__ float dot(const Shared<float>& a, int a_row, const Shared<float>& b, int b_row,
                                     int head_dim) {
  float sum = 0.0f;
  for (int e = 0; e < head_dim; ++e) sum += a[a_row * pitch_of(head_dim) + e] * b[b_row * pitch_of(head_dim) + e];
  return sum;
}

/// The number of the kRows keys from `key_begin` on that the query sees. Both are counted from the beginning of the
/// block.
template <int kRows>
__device__ __forceinline__ int visible(const AttentionBlock& block, int64_t query, int64_t key_begin) {
  const int64_t keys = (block.causal ? query + 1 : block.keys) - key_begin;
  return keys < 0 ? 0 : keys < kRows ? static_cast<int>(keys) : kRows;
}

/// The number of keys from key_begin on that the query hides.
template <typename Masks>
__device__ __forceinline__ int hidden(const Masks& masks, int64_t query, int64_t key_begin) {
  const int64_t count = masks.hidden.before(blockIdx.z, query) - key_begin;
  return !Masks::kHides || count < 0 ? 0 : static_cast<int>(count);
}

/// The factor of dropout on a weight of the current sequence. Query and key count from the beginning of the block.
template <typename Masks>
__device__ __forceinline__ float factor_of(const Masks& masks, const AttentionBlock& block, int64_t head, int64_t query,
                                           int64_t key) {
  return masks.dropout.factor(blockIdx.z, head, block.first_query + query, block.first_key + key);
}

/// The end of the keys for the tile of queries at `begin`.
__device__ __forceinline__ int64_t keys_end(const AttentionBlock& block, int64_t begin) {
  return block.causal ? begin + 1 : block.keys;
}

/// Row `token` of a head in [B, H, T].
template <typename Args>
__device__ __forceinline__ int64_t row_of_head(const Args& all, int64_t sequence, int64_t head, int64_t token) {
  return (sequence * all.heads + head) * all.tokens + token;
}

template <typename Tile, typename Masks, bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads, kBlocks) forward_kernel(AttentionBlockForward args, Masks masks) {
  ptx::after_earlier_kernels();
  constexpr int kRows = Tile::kRows, kColumns = Tile::kColumns, kParts = Tile::kParts, kKeys = Tile::kKeys;
  constexpr int kScorePitch = Tile::kScorePitch, kScoreFloats = Tile::kScoreFloats;
  SLIP_DYNAMIC_SHARED(bytes);
  const AttentionForward& all = args.all;
  const AttentionBlock& block = args.block;
  const int head_dim = static_cast<int>(all.head_dim), pitch = pitch_of(head_dim), floats = Tile::floats(head_dim);
  const Shared<float> q(bytes, floats), k(bytes + 4 * floats, floats), v(bytes + 8 * floats, floats),
      p(bytes + 12 * floats, kScoreFloats);
  const int row = static_cast<int>(threadIdx.x) / kParts, part = static_cast<int>(threadIdx.x) % kParts;
  // The longest rows come first, so that short ones fill the end.
  const int64_t begin = int64_t{gridDim.x - 1 - blockIdx.x} * kRows, query = begin + row, head = blockIdx.y;
  const int64_t first_row = blockIdx.z * all.tokens + block.first_query,
                first_key = blockIdx.z * all.tokens + block.first_key;
  const int64_t kv_head = head / (all.heads / all.kv_heads),
                carried = row_of_head(all, blockIdx.z, head, block.first_query + query);
  const T* keys = static_cast<const T*>(all.k) + first_key * all.kv_stride + kv_head * head_dim;
  const T* values = static_cast<const T*>(all.v) + first_key * all.kv_stride + kv_head * head_dim;
  load_tile<kRows, kAligned>(q, static_cast<const T*>(all.q) + first_row * all.q_stride + head * head_dim, all.q_stride,
                             begin, block.queries, head_dim);
  float out[kColumns] = {}, largest = -__builtin_inff(), sum = 0.0f;
  if (!args.first && query < block.queries) {
    largest = args.carried.maximum[carried];
    if (part == 0) sum = args.carried.sum[carried];  // the sum is distributed over the threads of a row
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = part + i * kParts;
      if (column < head_dim) out[i] = args.carried.out[carried * head_dim + column];
    }
  }
  for (int64_t key_begin = masks.hidden.template keys_begin<kRows>(blockIdx.z, begin);
       key_begin < keys_end(block, begin); key_begin += kRows) {
    __syncthreads();
    load_tile<kRows, kAligned>(k, keys, all.kv_stride, key_begin, block.keys, head_dim);
    load_tile<kRows, kAligned>(v, values, all.kv_stride, key_begin, block.keys, head_dim);
    __syncthreads();
    const int seen = visible<kRows>(block, query, key_begin), old = hidden(masks, query, key_begin);
    float scores[kKeys], highest = largest;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int key = part + i * kParts;
      scores[i] =
          (!Masks::kHides || key >= old) && key < seen ? all.scale * dot(q, row, k, key, head_dim) : -__builtin_inff();
      highest = fmaxf(highest, scores[i]);
    }
#pragma unroll
    for (int bits = 1; bits < kParts; bits *= 2) highest = fmaxf(highest, __shfl_xor_sync(kWholeWarp, highest, bits));
    // In the first tiles a query may see no key.
    const float base = !Masks::kHides || highest > -__builtin_inff() ? highest : 0.0f, keep = expf(largest - base);
    largest = highest;
    sum *= keep;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const float weight = expf(scores[i] - base);
      sum += weight;
      p[row * kScorePitch + part + i * kParts] =
          weight * factor_of(masks, block, head, query, key_begin + part + i * kParts);
    }
    __syncwarp();  // only the row's own threads read a row of p
#pragma unroll
    for (int i = 0; i < kColumns; ++i) out[i] *= keep;
    for (int key = old; key < seen; ++key) {
      const float weight = p[row * kScorePitch + key];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int column = part + i * kParts;
        if (column < head_dim) out[i] += weight * v[key * pitch + column];
      }
    }
  }
#pragma unroll
  for (int bits = 1; bits < kParts; bits *= 2) sum += __shfl_xor_sync(kWholeWarp, sum, bits);
  if (query >= block.queries) return;
  T* to = static_cast<T*>(all.out) + (first_row + query) * all.out_stride + head * head_dim;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int column = part + i * kParts;
    if (column >= head_dim) continue;
    if (args.last)
      to[column] = from_float<T>(out[i] / sum);
    else
      args.carried.out[carried * head_dim + column] = out[i];
  }
  if (part != 0) return;
  if (args.last) {
    all.lse[carried] = largest + logf(sum);
  } else {
    args.carried.maximum[carried] = largest;
    args.carried.sum[carried] = sum;
  }
}

/// delta[b, h, t] = dout . out. Each is computed by `lanes` neighbours of a warp, a power of two.
template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) delta_kernel(AttentionBackward args, int lanes, float* delta) {
  ptx::after_earlier_kernels();
  const int64_t index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / lanes;
  const bool inside =
      index < args.batch * args.heads * args.tokens;  // no early return: the other lanes of the warp need this one
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int64_t token = index % args.tokens, head = index / args.tokens % args.heads,
                sequence = index / args.tokens / args.heads;
  const int64_t offset = (sequence * args.tokens + token) * args.out_stride + head * args.head_dim;
  float sum = 0.0f;
  for (int64_t e = lane * kPack<T>; inside && e < args.head_dim; e += lanes * kPack<T>) {
    float d[kPack<T>], o[kPack<T>];
    load_floats<kAligned>(static_cast<const T*>(args.dout) + offset + e, args.head_dim - e, d);
    load_floats<kAligned>(static_cast<const T*>(args.out) + offset + e, args.head_dim - e, o);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) sum += d[i] * o[i];
  }
  for (int bits = lanes / 2; bits > 0; bits /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, bits);
  if (inside && lane == 0) delta[index] = sum;
}

/// The row statistics of a query of the block. Without a query, weights become 0.
struct Row {
  float lse, delta;
};
__device__ __forceinline__ Row row_of(const AttentionBlockBackward& args, const float* delta, int64_t sequence,
                                      int64_t head, int64_t query) {
  if (query >= args.block.queries) return {__builtin_inff(), 0.0f};
  const int64_t at = row_of_head(args.all, sequence, head, args.block.first_query + query);
  return {args.all.lse[at], delta[at]};
}

/// Computes dq with one thread block per tile of queries.
template <typename Tile, typename Masks, bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads, kQueryBlocks)
    query_kernel(AttentionBlockBackward args, Masks masks, const float* delta) {
  ptx::after_earlier_kernels();
  constexpr int kRows = Tile::kRows, kColumns = Tile::kColumns, kParts = Tile::kParts;
  constexpr int kScorePitch = Tile::kScorePitch, kScoreFloats = Tile::kScoreFloats;
  SLIP_DYNAMIC_SHARED(bytes);
  const AttentionBackward& all = args.all;
  const AttentionBlock& block = args.block;
  const int head_dim = static_cast<int>(all.head_dim), pitch = pitch_of(head_dim), floats = Tile::floats(head_dim);
  const Shared<float> q(bytes, floats), d(bytes + 4 * floats, floats), k(bytes + 8 * floats, floats),
      v(bytes + 12 * floats, floats), ds(bytes + 16 * floats, kScoreFloats);
  const int row = static_cast<int>(threadIdx.x) / kParts, part = static_cast<int>(threadIdx.x) % kParts;
  const int64_t begin = int64_t{gridDim.x - 1 - blockIdx.x} * kRows, query = begin + row, head = blockIdx.y;
  const int64_t first_row = blockIdx.z * all.tokens + block.first_query,
                first_key = blockIdx.z * all.tokens + block.first_key;
  const int64_t kv_head = head / (all.heads / all.kv_heads),
                carried = row_of_head(all, blockIdx.z, head, block.first_query + query) * head_dim;
  load_tile<kRows, kAligned>(q, static_cast<const T*>(all.q) + first_row * all.q_stride + head * head_dim, all.q_stride,
                             begin, block.queries, head_dim);
  load_tile<kRows, kAligned>(d, static_cast<const T*>(all.dout) + first_row * all.out_stride + head * head_dim,
                             all.out_stride, begin, block.queries, head_dim);
  const Row mine = row_of(args, delta, blockIdx.z, head, query);
  float dq[kColumns] = {};
  if (!args.first && query < block.queries) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = part + i * kParts;
      if (column < head_dim) dq[i] = args.dq_sum[carried + column];
    }
  }
  for (int64_t key_begin = masks.hidden.template keys_begin<kRows>(blockIdx.z, begin);
       key_begin < keys_end(block, begin); key_begin += kRows) {
    __syncthreads();
    load_tile<kRows, kAligned>(k, static_cast<const T*>(all.k) + first_key * all.kv_stride + kv_head * head_dim,
                               all.kv_stride, key_begin, block.keys, head_dim);
    load_tile<kRows, kAligned>(v, static_cast<const T*>(all.v) + first_key * all.kv_stride + kv_head * head_dim,
                               all.kv_stride, key_begin, block.keys, head_dim);
    __syncthreads();
    const int seen = visible<kRows>(block, query, key_begin), old = hidden(masks, query, key_begin);
    for (int key = part; key < kRows; key += kParts) {
      float slope = 0.0f;
      if ((!Masks::kHides || key >= old) && key < seen)
        slope = expf(all.scale * dot(q, row, k, key, head_dim) - mine.lse) *
                (dot(d, row, v, key, head_dim) * factor_of(masks, block, head, query, key_begin + key) - mine.delta);
      ds[row * kScorePitch + key] = slope;
    }
    __syncwarp();  // only the row's own threads read a row of ds
    for (int key = old; key < seen; ++key) {
      const float slope = ds[row * kScorePitch + key];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int column = part + i * kParts;
        if (column < head_dim) dq[i] += slope * k[key * pitch + column];
      }
    }
  }
  if (query >= block.queries) return;
  T* to = static_cast<T*>(all.dq) + (first_row + query) * all.dq_stride + head * head_dim;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int column = part + i * kParts;
    if (column >= head_dim) continue;
    if (args.last)
      to[column] = from_float<T>(all.scale * dq[i]);
    else
      args.dq_sum[carried + column] = dq[i];
  }
}

/// Computes dk and dv with one thread block per tile of keys, over the heads of the group in order.
template <typename Tile, typename Masks, bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    key_kernel(AttentionBlockBackward args, Masks masks, const float* delta) {
  ptx::after_earlier_kernels();
  constexpr int kRows = Tile::kRows, kColumns = Tile::kColumns, kParts = Tile::kParts;
  constexpr int kScorePitch = Tile::kScorePitch, kScoreFloats = Tile::kScoreFloats;
  SLIP_DYNAMIC_SHARED(bytes);
  const AttentionBackward& all = args.all;
  const AttentionBlock& block = args.block;
  const int head_dim = static_cast<int>(all.head_dim), pitch = pitch_of(head_dim), floats = Tile::floats(head_dim);
  const Shared<float> q(bytes, floats), d(bytes + 4 * floats, floats), k(bytes + 8 * floats, floats),
      v(bytes + 12 * floats, floats), p(bytes + 16 * floats, kScoreFloats),
      ds(bytes + 16 * floats + 4 * kScoreFloats, kScoreFloats);
  const int row = static_cast<int>(threadIdx.x) / kParts, part = static_cast<int>(threadIdx.x) % kParts;
  const int64_t key_begin = int64_t{blockIdx.x} * kRows, kv_head = blockIdx.y;
  const int64_t first_row = blockIdx.z * all.tokens + block.first_query,
                first_key = blockIdx.z * all.tokens + block.first_key;
  const int64_t group = all.heads / all.kv_heads;
  load_tile<kRows, kAligned>(k, static_cast<const T*>(all.k) + first_key * all.kv_stride + kv_head * head_dim,
                             all.kv_stride, key_begin, block.keys, head_dim);
  load_tile<kRows, kAligned>(v, static_cast<const T*>(all.v) + first_key * all.kv_stride + kv_head * head_dim,
                             all.kv_stride, key_begin, block.keys, head_dim);
  float dk[kColumns] = {}, dv[kColumns] = {};
  const int64_t first = block.causal ? key_begin : 0;
  int64_t end = block.queries;
  if constexpr (Masks::kHides) end = masks.hidden.queries_end(blockIdx.z, first, key_begin + kRows);
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (int64_t begin = first; begin < end; begin += kRows) {
      __syncthreads();
      load_tile<kRows, kAligned>(q, static_cast<const T*>(all.q) + first_row * all.q_stride + head * head_dim,
                                 all.q_stride, begin, block.queries, head_dim);
      load_tile<kRows, kAligned>(d, static_cast<const T*>(all.dout) + first_row * all.out_stride + head * head_dim,
                                 all.out_stride, begin, block.queries, head_dim);
      __syncthreads();
      const Row mine = row_of(args, delta, blockIdx.z, head, begin + row);
      const int seen = visible<kRows>(block, begin + row, key_begin), old = hidden(masks, begin + row, key_begin);
      for (int key = part; key < kRows; key += kParts) {
        float weight = 0.0f, slope = 0.0f;
        if ((!Masks::kHides || key >= old) && key < seen) {
          const float factor = factor_of(masks, block, head, begin + row, key_begin + key);
          weight = expf(all.scale * dot(q, row, k, key, head_dim) - mine.lse);
          slope = weight * (dot(d, row, v, key, head_dim) * factor - mine.delta);
          weight *= factor;
        }
        p[row * kScorePitch + key] = weight;
        ds[row * kScorePitch + key] = slope;
      }
      __syncthreads();
      // From here on `row` is a key.
      for (int i_query = 0; i_query < kRows; ++i_query) {
        const float weight = p[i_query * kScorePitch + row], slope = ds[i_query * kScorePitch + row];
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          const int column = part + i * kParts;
          if (column < head_dim) {
            dk[i] += slope * q[i_query * pitch + column];
            dv[i] += weight * d[i_query * pitch + column];
          }
        }
      }
    }
  if (key_begin + row >= block.keys) return;
  const int64_t kv_width = all.kv_heads * head_dim, at = first_key + key_begin + row;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int column = part + i * kParts;
    if (column >= head_dim) continue;
    const int64_t of_row = kv_head * head_dim + column;
    if (args.dkv != nullptr) {
      args.dkv[at * 2 * kv_width + of_row] = all.scale * dk[i];
      args.dkv[at * 2 * kv_width + kv_width + of_row] = dv[i];
    } else {
      static_cast<T*>(all.dk)[at * all.dkv_stride + of_row] = from_float<T>(all.scale * dk[i]);
      static_cast<T*>(all.dv)[at * all.dkv_stride + of_row] = from_float<T>(dv[i]);
    }
  }
}

/// Calls body with the tile of the head's size, `aligned` as a constant, and the masks.
template <typename Args, typename Body>
void for_instance(const Args& args, bool aligned, const Body& body) {
  const auto of_tile = [&](auto tile) {
    for_flag(aligned,
             [&](auto is_aligned) { for_masks(args, [&](const auto& masks) { body(tile, is_aligned, masks); }); });
  };
  if (args.all.head_dim <= 64)
    of_tile(TileOf<32, 16>{});
  else if (args.all.head_dim <= 128)
    of_tile(TileOf<32, 32>{});
  else
    of_tile(TileOf<16, 32>{});
}

/// Does every row of a head consist of whole packs at a multiple of 16 bytes?
template <typename T, typename... Pointers>
bool whole_packs(std::initializer_list<int64_t> elems, const Pointers*... pointers) {
  for (int64_t count : elems)
    if (count % kPack<T> != 0) return false;
  return all_aligned(pointers...);
}

template <typename Tile>
size_t shared_bytes(int64_t head_dim, int tiles, int scores) {
  return sizeof(float) *
         static_cast<size_t>(tiles * Tile::floats(static_cast<int>(head_dim)) + scores * Tile::kScoreFloats);
}

template <typename Tile>
dim3 grid_of(int64_t tokens, int64_t heads, int64_t batch) {
  return dim3(static_cast<unsigned>(blocks_for(tokens, Tile::kRows)), static_cast<unsigned>(heads),
              static_cast<unsigned>(batch));
}

}  // namespace

void attention_block_forward_cuda(LaunchContext& context, const AttentionBlockForward& args) {
  const AttentionPath path = attention_path(compute_capability());
  if (path == AttentionPath::hopper && attention_forward_hopper(context, args)) return;
  if (path != AttentionPath::plain && attention_forward_mma(context, args)) return;
  const AttentionForward& all = args.all;
  for_dtype(all.dtype, [&](auto type) {
    using T = decltype(type);
    const bool whole = whole_packs<T>({all.head_dim, all.q_stride, all.kv_stride}, all.q, all.k, all.v);
    for_instance(args, whole, [&](auto tile, auto aligned, const auto& masks) {
      using Tile = decltype(tile);
      launch(stream_of(context), forward_kernel<Tile, std::decay_t<decltype(masks)>, aligned.value, T>,
             grid_of<Tile>(args.block.queries, all.heads, all.batch), dim3(kThreads),
             shared_bytes<Tile>(all.head_dim, 3, 1), args, masks);
    });
  });
}

void attention_forward_cuda(LaunchContext& context, const AttentionForward& args) {
  attention_block_forward_cuda(context, {.all = args, .block = {0, args.tokens, 0, args.tokens}, .carried = {}});
}

namespace {

template <typename T>
void launch_delta(LaunchContext& context, const AttentionBackward& args) {
  int lanes = 1;
  while (lanes < kWarp && lanes * kPack<T> < args.head_dim) lanes *= 2;
  for_flag(whole_packs<T>({args.head_dim, args.out_stride}, args.dout, args.out), [&](auto aligned) {
    launch(stream_of(context), delta_kernel<aligned.value, T>,
           dim3(static_cast<unsigned>(blocks_for(args.batch * args.heads * args.tokens, kThreads / lanes))),
           dim3(kThreads), 0, args, lanes, args.workspace);
  });
}

template <typename T>
void launch_backward(LaunchContext& context, const AttentionBlockBackward& args) {
  launch_delta<T>(context, args.all);
  const AttentionBackward& all = args.all;
  const float* delta = all.workspace;
  const AttentionPath path = attention_path(compute_capability());
  if (path == AttentionPath::hopper && attention_backward_hopper(context, args, delta)) return;
  if (path != AttentionPath::plain && attention_backward_mma(context, args, delta)) return;
  const bool whole =
      whole_packs<T>({all.head_dim, all.q_stride, all.kv_stride, all.out_stride}, all.dout, all.q, all.k, all.v);
  for_instance(args, whole, [&](auto tile, auto aligned, const auto& masks) {
    using Tile = decltype(tile);
    using Masks = std::decay_t<decltype(masks)>;
    if (args.block.keys > 0)
      launch(stream_of(context), key_kernel<Tile, Masks, aligned.value, T>,
             grid_of<Tile>(args.block.keys, all.kv_heads, all.batch), dim3(kThreads),
             shared_bytes<Tile>(all.head_dim, 4, 2), args, masks, delta);
    launch(stream_of(context), query_kernel<Tile, Masks, aligned.value, T>,
           grid_of<Tile>(args.block.queries, all.heads, all.batch), dim3(kThreads),
           shared_bytes<Tile>(all.head_dim, 4, 1), args, masks, delta);
  });
}

}  // namespace

void attention_block_backward_cuda(LaunchContext& context, const AttentionBlockBackward& args) {
  const AttentionBackward& all = args.all;
  if (args.block.keys < all.tokens || args.block.queries == 0)
    cuda_check(
        cudaMemsetAsync(args.dkv, 0,
                        sizeof(float) * static_cast<size_t>(all.batch * all.tokens * 2 * all.kv_heads * all.head_dim),
                        stream_of(context)),
        "zeroing the gradients of keys that a block does not touch");
  if (args.block.queries > 0) for_dtype(all.dtype, [&](auto type) { launch_backward<decltype(type)>(context, args); });
}

void attention_backward_cuda(LaunchContext& context, const AttentionBackward& args) {
  for_dtype(args.dtype, [&](auto type) {
    launch_backward<decltype(type)>(context, {.all = args, .block = {0, args.tokens, 0, args.tokens}});
  });
}

}  // namespace slipstream::kernels

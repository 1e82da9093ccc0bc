// SPDX-License-Identifier: Apache-2.0
// Attention on CUDA for any head size up to 256 and both types: blocks of 32 queries by 32 keys from shared memory.
//
// A thread owns a quarter of the columns of a row; the four threads of a row are neighbours in a warp. The tensor core path
// (attention_mma.cu) takes bf16 heads of 64 and 128.

#include "kernels/attention/attention_cuda.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/entry_points.h"

namespace slipstream::kernels {
namespace {

constexpr int kTile = 32;             // queries, and keys, of a block
constexpr int kParts = 4;             // threads of a row
constexpr int kThreads = kTile * kParts;
constexpr int kKeys = kTile / kParts;  // scores of a thread
constexpr int kScorePitch = kTile + 1;

/// Floats of a tile of rows; one more a row, so that a column lies in different banks.
__host__ __device__ constexpr int pitch_of(int head_dim) { return head_dim + 1; }
__host__ __device__ constexpr int tile_floats(int head_dim) { return kTile * pitch_of(head_dim); }
constexpr int kScoreFloats = kTile * kScorePitch;

/// tile = rows [begin, begin + kTile) as float, zeros from `tokens` on.
template <typename T>
__device__ __forceinline__ void load_tile(const Shared<float>& tile, const T* from, int64_t stride, int64_t begin, int64_t tokens, int head_dim) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * head_dim; i += kThreads) {
    const int row = i / head_dim, column = i % head_dim;
    tile[row * pitch_of(head_dim) + column] = begin + row < tokens ? to_float(from[(begin + row) * stride + column]) : 0.0f;
  }
}

__device__ __forceinline__ float dot(const Shared<float>& a, int a_row, const Shared<float>& b, int b_row, int head_dim) {
  float sum = 0.0f;
  for (int e = 0; e < head_dim; ++e) sum += a[a_row * pitch_of(head_dim) + e] * b[b_row * pitch_of(head_dim) + e];
  return sum;
}

/// How many keys of the tile at `key_begin` the query sees.
__device__ __forceinline__ int visible(int64_t query, int64_t key_begin) {
  const int64_t keys = query - key_begin + 1;
  return keys < 0 ? 0 : keys < kTile ? static_cast<int>(keys) : kTile;
}

/// kColumns: columns of a thread, at least head_dim / kParts.
template <int kColumns, typename T>
__global__ void __launch_bounds__(kThreads) forward_kernel(AttentionForward args) {
  SLIP_DYNAMIC_SHARED(bytes);
  const int head_dim = static_cast<int>(args.head_dim), pitch = pitch_of(head_dim), floats = tile_floats(head_dim);
  const Shared<float> q(bytes, floats), k(bytes + 4 * floats, floats), v(bytes + 8 * floats, floats), p(bytes + 12 * floats, kScoreFloats);
  const int row = static_cast<int>(threadIdx.x) / kParts, part = static_cast<int>(threadIdx.x) % kParts;
  // The longest rows first: the short ones fill the end.
  const int64_t begin = int64_t{gridDim.x - 1 - blockIdx.x} * kTile, query = begin + row, head = blockIdx.y;
  const int64_t sequence = blockIdx.z * args.tokens, kv_head = head / (args.heads / args.kv_heads);
  const T* keys = static_cast<const T*>(args.k) + sequence * args.kv_stride + kv_head * head_dim;
  const T* values = static_cast<const T*>(args.v) + sequence * args.kv_stride + kv_head * head_dim;
  load_tile(q, static_cast<const T*>(args.q) + sequence * args.q_stride + head * head_dim, args.q_stride, begin, args.tokens, head_dim);
  float out[kColumns] = {}, largest = -__builtin_inff(), sum = 0.0f;
  for (int64_t key_begin = 0; key_begin <= begin; key_begin += kTile) {
    __syncthreads();
    load_tile(k, keys, args.kv_stride, key_begin, args.tokens, head_dim);
    load_tile(v, values, args.kv_stride, key_begin, args.tokens, head_dim);
    __syncthreads();
    const int seen = visible(query, key_begin);
    float scores[kKeys], highest = largest;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int key = part + i * kParts;
      scores[i] = key < seen ? args.scale * dot(q, row, k, key, head_dim) : -__builtin_inff();
      highest = fmaxf(highest, scores[i]);
    }
    highest = fmaxf(highest, __shfl_xor_sync(kWholeWarp, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(kWholeWarp, highest, 2));
    const float keep = expf(largest - highest);
    largest = highest;
    sum *= keep;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const float weight = expf(scores[i] - highest);
      sum += weight;
      p[row * kScorePitch + part + i * kParts] = weight;
    }
    __syncwarp();  // a row of p is read by its own four threads alone
#pragma unroll
    for (int i = 0; i < kColumns; ++i) out[i] *= keep;
    for (int key = 0; key < seen; ++key) {
      const float weight = p[row * kScorePitch + key];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int column = part + i * kParts;
        if (column < head_dim) out[i] += weight * v[key * pitch + column];
      }
    }
  }
  sum += __shfl_xor_sync(kWholeWarp, sum, 1);
  sum += __shfl_xor_sync(kWholeWarp, sum, 2);
  if (query >= args.tokens) return;
  T* to = static_cast<T*>(args.out) + (sequence + query) * args.out_stride + head * head_dim;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int column = part + i * kParts;
    if (column < head_dim) to[column] = from_float<T>(out[i] / sum);
  }
  if (part == 0) args.lse[(blockIdx.z * args.heads + head) * args.tokens + query] = largest + logf(sum);
}

/// delta[b, h, t] = dout . out, a warp each.
template <typename T>
__global__ void __launch_bounds__(kThreads) delta_kernel(AttentionBackward args, float* delta) {
  const int64_t index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  if (index >= args.batch * args.heads * args.tokens) return;  // the whole warp
  const int64_t token = index % args.tokens, head = index / args.tokens % args.heads, sequence = index / args.tokens / args.heads;
  const int64_t offset = (sequence * args.tokens + token) * args.out_stride + head * args.head_dim;
  float sum = 0.0f;
  for (int64_t e = threadIdx.x % kWarp; e < args.head_dim; e += kWarp)
    sum += to_float(static_cast<const T*>(args.dout)[offset + e]) * to_float(static_cast<const T*>(args.out)[offset + e]);
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) delta[index] = sum;
}

/// Row statistics of a query: of no query, weights become 0.
struct Row {
  float lse, delta;
};
__device__ __forceinline__ Row row_of(const AttentionBackward& args, const float* delta, int64_t sequence, int64_t head, int64_t query) {
  if (query >= args.tokens) return {__builtin_inff(), 0.0f};
  const int64_t at = (sequence * args.heads + head) * args.tokens + query;
  return {args.lse[at], delta[at]};
}

/// A block per tile of queries: dq.
template <int kColumns, typename T>
__global__ void __launch_bounds__(kThreads) query_kernel(AttentionBackward args, const float* delta) {
  SLIP_DYNAMIC_SHARED(bytes);
  const int head_dim = static_cast<int>(args.head_dim), pitch = pitch_of(head_dim), floats = tile_floats(head_dim);
  const Shared<float> q(bytes, floats), d(bytes + 4 * floats, floats), k(bytes + 8 * floats, floats), v(bytes + 12 * floats, floats),
      ds(bytes + 16 * floats, kScoreFloats);
  const int row = static_cast<int>(threadIdx.x) / kParts, part = static_cast<int>(threadIdx.x) % kParts;
  const int64_t begin = int64_t{gridDim.x - 1 - blockIdx.x} * kTile, query = begin + row, head = blockIdx.y;
  const int64_t sequence = blockIdx.z * args.tokens, kv_head = head / (args.heads / args.kv_heads);
  load_tile(q, static_cast<const T*>(args.q) + sequence * args.q_stride + head * head_dim, args.q_stride, begin, args.tokens, head_dim);
  load_tile(d, static_cast<const T*>(args.dout) + sequence * args.out_stride + head * head_dim, args.out_stride, begin, args.tokens, head_dim);
  const Row mine = row_of(args, delta, blockIdx.z, head, query);
  float dq[kColumns] = {};
  for (int64_t key_begin = 0; key_begin <= begin; key_begin += kTile) {
    __syncthreads();
    load_tile(k, static_cast<const T*>(args.k) + sequence * args.kv_stride + kv_head * head_dim, args.kv_stride, key_begin, args.tokens, head_dim);
    load_tile(v, static_cast<const T*>(args.v) + sequence * args.kv_stride + kv_head * head_dim, args.kv_stride, key_begin, args.tokens, head_dim);
    __syncthreads();
    const int seen = visible(query, key_begin);
    for (int key = part; key < kTile; key += kParts) {
      float slope = 0.0f;
      if (key < seen) slope = expf(args.scale * dot(q, row, k, key, head_dim) - mine.lse) * (dot(d, row, v, key, head_dim) - mine.delta);
      ds[row * kScorePitch + key] = slope;
    }
    __syncwarp();  // a row of ds is read by its own four threads alone
    for (int key = 0; key < seen; ++key) {
      const float slope = ds[row * kScorePitch + key];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int column = part + i * kParts;
        if (column < head_dim) dq[i] += slope * k[key * pitch + column];
      }
    }
  }
  if (query >= args.tokens) return;
  T* to = static_cast<T*>(args.dq) + (sequence + query) * args.dq_stride + head * head_dim;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int column = part + i * kParts;
    if (column < head_dim) to[column] = from_float<T>(args.scale * dq[i]);
  }
}

/// A block per tile of keys: dk and dv, heads of the group in order.
template <int kColumns, typename T>
__global__ void __launch_bounds__(kThreads) key_kernel(AttentionBackward args, const float* delta) {
  SLIP_DYNAMIC_SHARED(bytes);
  const int head_dim = static_cast<int>(args.head_dim), pitch = pitch_of(head_dim), floats = tile_floats(head_dim);
  const Shared<float> q(bytes, floats), d(bytes + 4 * floats, floats), k(bytes + 8 * floats, floats), v(bytes + 12 * floats, floats),
      p(bytes + 16 * floats, kScoreFloats), ds(bytes + 16 * floats + 4 * kScoreFloats, kScoreFloats);
  const int row = static_cast<int>(threadIdx.x) / kParts, part = static_cast<int>(threadIdx.x) % kParts;
  const int64_t key_begin = int64_t{blockIdx.x} * kTile, kv_head = blockIdx.y, sequence = blockIdx.z * args.tokens;
  const int64_t group = args.heads / args.kv_heads;
  load_tile(k, static_cast<const T*>(args.k) + sequence * args.kv_stride + kv_head * head_dim, args.kv_stride, key_begin, args.tokens, head_dim);
  load_tile(v, static_cast<const T*>(args.v) + sequence * args.kv_stride + kv_head * head_dim, args.kv_stride, key_begin, args.tokens, head_dim);
  float dk[kColumns] = {}, dv[kColumns] = {};
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (int64_t begin = key_begin; begin < args.tokens; begin += kTile) {
      __syncthreads();
      load_tile(q, static_cast<const T*>(args.q) + sequence * args.q_stride + head * head_dim, args.q_stride, begin, args.tokens, head_dim);
      load_tile(d, static_cast<const T*>(args.dout) + sequence * args.out_stride + head * head_dim, args.out_stride, begin, args.tokens, head_dim);
      __syncthreads();
      const Row mine = row_of(args, delta, blockIdx.z, head, begin + row);
      const int seen = visible(begin + row, key_begin);
      for (int key = part; key < kTile; key += kParts) {
        float weight = 0.0f, slope = 0.0f;
        if (key < seen) {
          weight = expf(args.scale * dot(q, row, k, key, head_dim) - mine.lse);
          slope = weight * (dot(d, row, v, key, head_dim) - mine.delta);
        }
        p[row * kScorePitch + key] = weight;
        ds[row * kScorePitch + key] = slope;
      }
      __syncthreads();
      // From here on `row` is a key.
      for (int i_query = 0; i_query < kTile; ++i_query) {
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
  if (key_begin + row >= args.tokens) return;
  const int64_t offset = (sequence + key_begin + row) * args.dkv_stride + kv_head * head_dim;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int column = part + i * kParts;
    if (column < head_dim) {
      static_cast<T*>(args.dk)[offset + column] = from_float<T>(args.scale * dk[i]);
      static_cast<T*>(args.dv)[offset + column] = from_float<T>(dv[i]);
    }
  }
}

/// Calls body with the columns of a thread as a constant.
template <typename Body>
void for_columns(int64_t head_dim, const Body& body) {
  if (head_dim <= 16 * kParts) body(std::integral_constant<int, 16>{});
  else if (head_dim <= 32 * kParts) body(std::integral_constant<int, 32>{});
  else body(std::integral_constant<int, 64>{});
}

size_t shared_bytes(int64_t head_dim, int tiles, int scores) {
  return sizeof(float) * static_cast<size_t>(tiles * tile_floats(static_cast<int>(head_dim)) + scores * kScoreFloats);
}

dim3 grid_of(int64_t tokens, int64_t heads, int64_t batch) {
  return dim3(static_cast<unsigned>(blocks_for(tokens, kTile)), static_cast<unsigned>(heads), static_cast<unsigned>(batch));
}

}  // namespace

void attention_forward_cuda(LaunchContext& context, const AttentionForward& args) {
  if (attention_forward_mma(context, args)) return;
  for_dtype(args.dtype, [&](auto type) {
    for_columns(args.head_dim, [&](auto columns) {
      launch(stream_of(context), forward_kernel<columns.value, decltype(type)>, grid_of(args.tokens, args.heads, args.batch), dim3(kThreads),
             shared_bytes(args.head_dim, 3, 1), args);
    });
  });
}

void attention_backward_cuda(LaunchContext& context, const AttentionBackward& args) {
  float* delta = args.workspace;
  for_dtype(args.dtype, [&](auto type) {
    using T = decltype(type);
    launch(stream_of(context), delta_kernel<T>,
           dim3(static_cast<unsigned>(blocks_for(args.batch * args.heads * args.tokens, kThreads / kWarp))), dim3(kThreads), 0, args, delta);
    if (attention_backward_mma(context, args, delta)) return;
    for_columns(args.head_dim, [&](auto columns) {
      launch(stream_of(context), key_kernel<columns.value, T>, grid_of(args.tokens, args.kv_heads, args.batch), dim3(kThreads),
             shared_bytes(args.head_dim, 4, 2), args, delta);
      launch(stream_of(context), query_kernel<columns.value, T>, grid_of(args.tokens, args.heads, args.batch), dim3(kThreads),
             shared_bytes(args.head_dim, 4, 1), args, delta);
    });
  });
}

}  // namespace slipstream::kernels

// SPDX-License-Identifier: Apache-2.0
// Encoding for the wire on CUDA: one warp per block of 128, four values per lane, 16 bytes of float.

#include "kernels/cuda/elementwise.cuh"
#include "kernels/wire/wire.h"

namespace slipstream::kernels {
namespace {

constexpr int64_t kBlockElems = kInt8.block_elems;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kLaneElems = static_cast<int>(kBlockElems) / kWarp;
static_assert(kLaneElems == 4 && kWirePartElems % kLaneElems == 0, "a lane has a whole word of int8 or none");

struct Same {
  __device__ float operator()(float x) const { return x; }
};

/// The part of a block that belongs to a lane: `count` is 4, or 0 after the end of the part.
struct Lane {
  int64_t value;  // the index of its first value, over all parts
  int64_t word;   // the offset of its four bytes on the wire
  int64_t scale;  // the offset of the scale
  int count;
};
__device__ __forceinline__ Lane lane_of(int64_t block, int64_t elems, int64_t part_bytes) {
  const int64_t per_part = (elems + kBlockElems - 1) / kBlockElems, part = block / per_part, index = block % per_part;
  const int64_t at = index * kBlockElems + static_cast<int64_t>(threadIdx.x % kWarp) * kLaneElems;
  const int64_t begin = part * part_bytes;
  return {part * elems + at, begin + at, begin + elems + 4 * index, at < elems ? kLaneElems : 0};
}

__device__ __forceinline__ float decoded(uint32_t word, int i, float scale) {
  const auto byte = static_cast<int8_t>(word >> (8 * i));
  return byte == 0 ? 0.0f : static_cast<float>(byte) * scale;
}

template <bool kAligned>
__global__ void __launch_bounds__(kThreads) encode_kernel(Encode args, int64_t part_bytes) {
  ptx::wait_for_earlier_kernels();
  const int64_t block = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int64_t blocks = args.parts * ((args.elems + kBlockElems - 1) / kBlockElems);
  if (block >= blocks) return;
  const Lane lane = lane_of(block, args.elems, part_bytes);
  float x[kLaneElems], rest[kLaneElems] = {}, top = 0.0f, finite = 0.0f;
  load_floats<kAligned>(args.from + lane.value, lane.count, x);
  if (args.residual) load_floats<kAligned>(args.residual + lane.value, lane.count, rest);
#pragma unroll
  for (int i = 0; i < kLaneElems; ++i) {
    x[i] += rest[i];
    top = fmaxf(top, fabsf(x[i]));
    finite += x[i] - x[i];
  }
  for (int bits = kWarp / 2; bits > 0; bits /= 2) top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, bits));
  finite = warp_sum(finite);
  const bool zero = top < 1e-30f;
  const float scale = zero ? finite : top / 127.0f + finite, inverse = zero || scale != scale ? 0.0f : 127.0f / top;
  auto* to = static_cast<unsigned char*>(args.to);
  if (threadIdx.x % kWarp == 0) *reinterpret_cast<float*>(to + lane.scale) = scale;
  if (lane.count == 0) return;
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < kLaneElems; ++i) {
    const float whole = rintf(fminf(fmaxf(x[i] * inverse, -127.0f), 127.0f));
    word |= (static_cast<uint32_t>(static_cast<int>(whole)) & 0xffu) << (8 * i);
    rest[i] = scale == scale ? x[i] - whole * scale : 0.0f;
  }
  if (args.residual) store_floats<kAligned>(args.residual + lane.value, lane.count, rest);
  *reinterpret_cast<uint32_t*>(to + lane.word) = word;
}

template <bool kAligned, typename To>
__global__ void __launch_bounds__(kThreads) decode_kernel(Decode args, int64_t part_bytes) {
  ptx::wait_for_earlier_kernels();
  const int64_t block = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int64_t blocks = args.parts * ((args.elems + kBlockElems - 1) / kBlockElems);
  if (block >= blocks) return;
  const Lane lane = lane_of(block, args.elems, part_bytes);
  if (lane.count == 0) return;
  const auto* from = static_cast<const unsigned char*>(args.from);
  const float scale = *reinterpret_cast<const float*>(from + lane.scale);
  const uint32_t word = *reinterpret_cast<const uint32_t*>(from + lane.word);
  float x[kLaneElems];
#pragma unroll
  for (int i = 0; i < kLaneElems; ++i) x[i] = decoded(word, i, scale);
  To* to = static_cast<To*>(args.to) + lane.value;
  if constexpr (kLaneElems % kPack<To> == 0) {
    store_floats<kAligned>(to, lane.count, x);
  } else {  // half a pack of bf16
#pragma unroll
    for (int i = 0; i < kLaneElems; ++i) to[i] = from_float<To>(x[i]);
  }
}

template <bool kAligned>
__global__ void __launch_bounds__(kThreads) sum_bytes_kernel(SumParts args, int64_t part_bytes) {
  ptx::wait_for_earlier_kernels();
  const int64_t block = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (block >= (args.elems + kBlockElems - 1) / kBlockElems) return;
  const Lane lane = lane_of(block, args.elems, part_bytes);
  if (lane.count == 0) return;
  float total[kLaneElems] = {};
  for (int64_t part = 0; part < args.parts; ++part) {
    const auto* from = static_cast<const unsigned char*>(args.from) + part * part_bytes;
    const float scale = *reinterpret_cast<const float*>(from + lane.scale);
    const uint32_t word = *reinterpret_cast<const uint32_t*>(from + lane.word);
    for (int i = 0; i < kLaneElems; ++i)
      total[i] = part == 0 ? decoded(word, i, scale) : total[i] + decoded(word, i, scale);
  }
  store_floats<kAligned>(args.to + lane.value, lane.count, total);
}

template <bool kAligned>
__global__ void __launch_bounds__(kThreads) sum_rounded_kernel(SumParts args) {
  ptx::wait_for_earlier_kernels();
  constexpr int kElems = kPack<bfloat16>;
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElems, left = args.elems - first;
  if (left <= 0) return;
  const auto* from = static_cast<const bfloat16*>(args.from) + first;
  float total[kElems], more[kElems];
  load_floats<kAligned>(from, left, total);
  for (int64_t part = 1; part < args.parts; ++part) {
    load_floats<kAligned>(from + part * args.elems, left, more);
#pragma unroll
    for (int i = 0; i < kElems; ++i) total[i] += more[i];
  }
  store_floats<kAligned>(args.to + first, left, total);
}

dim3 grid_for(int64_t warps) { return dim3(static_cast<unsigned>(blocks_for(warps, kWarps))); }

}  // namespace

void encode_cuda(LaunchContext& context, const Encode& args) {
  if (args.wire == DType::bf16)
    return map(context, args.parts * args.elems, args.from, static_cast<bfloat16*>(args.to), Same{});
  for_flag(all_aligned(args.from, args.residual), [&](auto aligned) {
    launch(stream_of(context), encode_kernel<aligned.value>, grid_for(args.parts * blocks_for(args.elems, kBlockElems)),
           dim3(kThreads), 0, args, encoded_bytes(args.elems, kInt8));
  });
}

void decode_cuda(LaunchContext& context, const Decode& args) {
  for_dtype(args.to_dtype, [&](auto to) {
    using To = decltype(to);
    if (args.wire == DType::bf16)
      return map(context, args.parts * args.elems, static_cast<const bfloat16*>(args.from), static_cast<To*>(args.to),
                 Same{});
    for_flag(all_aligned(args.to), [&](auto aligned) {
      launch(stream_of(context), decode_kernel<aligned.value, To>,
             grid_for(args.parts * blocks_for(args.elems, kBlockElems)), dim3(kThreads), 0, args,
             encoded_bytes(args.elems, kInt8));
    });
  });
}

void sum_parts_cuda(LaunchContext& context, const SumParts& args) {
  constexpr int kElems = kPack<bfloat16>;
  if (args.wire == kInt8)
    for_flag(all_aligned(args.to), [&](auto aligned) {
      launch(stream_of(context), sum_bytes_kernel<aligned.value>, grid_for(blocks_for(args.elems, kBlockElems)),
             dim3(kThreads), 0, args, encoded_bytes(args.elems, kInt8));
    });
  else
    for_flag(args.elems % kElems == 0 && all_aligned(args.from, args.to), [&](auto aligned) {
      launch(stream_of(context), sum_rounded_kernel<aligned.value>,
             dim3(static_cast<unsigned>(blocks_for(args.elems, kThreads * kElems))), dim3(kThreads), 0, args);
    });
}

}  // namespace slipstream::kernels

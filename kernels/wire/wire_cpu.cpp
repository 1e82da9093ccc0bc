// SPDX-License-Identifier: Apache-2.0
// Encoding and decoding, with whole blocks per thread.

#include "kernels/wire/wire.h"

#include "kernels/common/simd.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

constexpr int64_t kBlockElems = kInt8.block_elems;

typedef int8_t Vb __attribute__((vector_size(kLanes)));
static_assert(kWirePartElems % kLanes == 0, "a part is whole vectors");

// The blocks per unit of the split over threads. With fewer, waking a thread costs more than it saves.
constexpr int64_t kGrain = 64;

/// Block `block` of `parts` parts, as the positions of its values and its bytes.
struct Block {
  int64_t first;  // the index of its first value, over all parts
  int64_t count;
  int64_t bytes;  // the offset of its values on the wire
  int64_t scale;  // the offset of its scale (u8)
};
Block block_at(int64_t block, int64_t elems, const Format& wire) {
  const int64_t per_part = ceil_div(elems, kBlockElems), part = block / per_part, index = block % per_part;
  const int64_t at = index * kBlockElems, begin = part * encoded_bytes(elems, wire);
  return {part * elems + at, elems - at < kBlockElems ? elems - at : kBlockElems, begin + (wire == kInt8 ? at : 2 * at),
          begin + elems + 4 * index};
}

inline Vf absolute(Vf v) { return reinterpret_cast<Vf>(reinterpret_cast<Vu>(v) & 0x7fffffffu); }

inline Vf decoded(const int8_t* p, float scale) {
  Vb bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  const Vf x = __builtin_convertvector(__builtin_convertvector(bytes, Vi), Vf);
  return x == Vf{} ? Vf{} : x * scale;
}

float scale_at(const std::byte* p) {
  float scale;
  std::memcpy(&scale, p, sizeof scale);
  return scale;
}

void encode_block(const float* from, float* residual, int64_t count, int8_t* to, std::byte* scale_to) {
  Vf largest{}, finite{};  // x - x is 0, or NaN if x is not finite
  for (int64_t i = 0; i < count; i += kLanes) {
    const Vf x = residual ? load(from + i) + load(residual + i) : load(from + i);
    largest = max(largest, absolute(x));
    finite += x - x;
  }
  const float top = max(largest);
  // Below this, the inverse is not finite. With a residual nothing is lost.
  const bool zero = top < 1e-30f;
  const float scale = zero ? sum(finite) : top / 127.0f + sum(finite),
              inverse = zero || scale != scale ? 0.0f : 127.0f / top;
  std::memcpy(scale_to, &scale, sizeof scale);
  for (int64_t i = 0; i < count; i += kLanes) {
    const Vf x = residual ? load(from + i) + load(residual + i) : load(from + i);
    // Rounds to nearest by adding 1.5 x 2^23. NaN, also that of infinity x 0, becomes a bound.
    const Vf bounded = min(max(x * inverse, splat(-127.0f)), splat(127.0f));
    const Vf whole = (bounded + 12582912.0f) - 12582912.0f;
    const Vb bytes = __builtin_convertvector(__builtin_convertvector(whole, Vi), Vb);
    std::memcpy(to + i, &bytes, sizeof bytes);
    if (residual) store(residual + i, scale == scale ? x - whole * scale : Vf{});
  }
}

}  // namespace

void encode_cpu(LaunchContext& context, const Encode& args) {
  auto* to = static_cast<std::byte*>(args.to);
  context.parallel_for(args.parts * ceil_div(args.elems, kBlockElems), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const Block block = block_at(b, args.elems, args.wire);
      const float* from = args.from + block.first;
      if (args.wire == kInt8) {
        encode_block(from, args.residual ? args.residual + block.first : nullptr, block.count,
                     reinterpret_cast<int8_t*>(to + block.bytes), to + block.scale);
      } else {
        auto* rounded = reinterpret_cast<bfloat16*>(to + block.bytes);
        for (int64_t i = 0; i < block.count; i += kLanes) store(rounded + i, load(from + i));
      }
    }
  });
}

namespace {

template <typename To>
void decode_to(LaunchContext& context, const Decode& args) {
  const auto* from = static_cast<const std::byte*>(args.from);
  auto* all = static_cast<To*>(args.to);
  context.parallel_for(args.parts * ceil_div(args.elems, kBlockElems), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const Block block = block_at(b, args.elems, args.wire);
      To* to = all + block.first;
      if (args.wire == kInt8) {
        const auto* bytes = reinterpret_cast<const int8_t*>(from + block.bytes);
        const float scale = scale_at(from + block.scale);
        for (int64_t i = 0; i < block.count; i += kLanes) store(to + i, decoded(bytes + i, scale));
      } else {
        const auto* rounded = reinterpret_cast<const bfloat16*>(from + block.bytes);
        for (int64_t i = 0; i < block.count; i += kLanes) store(to + i, load(rounded + i));
      }
    }
  });
}

}  // namespace

void decode_cpu(LaunchContext& context, const Decode& args) {
  args.to_dtype == DType::f32 ? decode_to<float>(context, args) : decode_to<bfloat16>(context, args);
}

void sum_parts_cpu(LaunchContext& context, const SumParts& args) {
  const auto* from = static_cast<const std::byte*>(args.from);
  const int64_t part_bytes = encoded_bytes(args.elems, args.wire);
  context.parallel_for(ceil_div(args.elems, kBlockElems), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const Block block = block_at(b, args.elems, args.wire);
      for (int64_t part = 0; part < args.parts; ++part) {
        const std::byte* bytes = from + part * part_bytes;
        const float scale = args.wire == kInt8 ? scale_at(bytes + block.scale) : 1.0f;
        for (int64_t i = 0; i < block.count; i += kLanes) {
          const Vf value = args.wire == kInt8 ? decoded(reinterpret_cast<const int8_t*>(bytes + block.bytes) + i, scale)
                                              : load(reinterpret_cast<const bfloat16*>(bytes + block.bytes) + i);
          float* to = args.to + block.first + i;
          store(to, part == 0 ? value : load(to) + value);
        }
      }
    }
  });
}

}  // namespace slipstream::kernels::SLIP_ISA

// SPDX-License-Identifier: Apache-2.0
// Plain loops over blocks that stay in the first-level cache, for the compiler to vectorise.

#include "comm/host/reduce.h"

#include <algorithm>

#include "engine/base/check.h"

namespace slipstream::comm {
namespace {

constexpr int64_t kBlockElems = 1024;

template <typename T, typename Wide>
void sum_blocks(std::byte* to_bytes, const std::byte* const* from, int count, int64_t elems) {
  T* to = reinterpret_cast<T*>(to_bytes);
  Wide total[kBlockElems];
  for (int64_t begin = 0; begin < elems; begin += kBlockElems) {
    const int64_t n = std::min(kBlockElems, elems - begin);
    const T* first = reinterpret_cast<const T*>(from[0]) + begin;
    for (int64_t i = 0; i < n; ++i) total[i] = static_cast<Wide>(first[i]);
    for (int part = 1; part < count; ++part) {
      const T* next = reinterpret_cast<const T*>(from[part]) + begin;
      for (int64_t i = 0; i < n; ++i) total[i] += static_cast<Wide>(next[i]);
    }
    for (int64_t i = 0; i < n; ++i) to[begin + i] = static_cast<T>(total[i]);
  }
}

}  // namespace

Part part_of(int64_t elems, int parts, int index) {
  const int64_t least = elems / parts;
  const int64_t larger = elems % parts;
  return {index * least + std::min<int64_t>(index, larger), least + (index < larger ? 1 : 0)};
}

void sum(DType dtype, std::byte* to, const std::byte* const* from, int count, int64_t elems) {
  switch (dtype) {
    case DType::f32:
      return sum_blocks<float, float>(to, from, count, elems);
    case DType::bf16:
      return sum_blocks<bfloat16, float>(to, from, count, elems);
    case DType::f64:
      return sum_blocks<double, double>(to, from, count, elems);
    default:
      SLIP_ASSERT(can_sum(dtype));
  }
}

}  // namespace slipstream::comm

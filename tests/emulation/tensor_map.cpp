// SPDX-License-Identifier: Apache-2.0
// Tensor maps of the emulated driver and TMA: cuTensorMapEncodeTiled takes what the driver's manual allows, and encodes
// it in a form of its own, with a sum that shows later changes.

#include <cuda.h>
#include <fmt/core.h>

#include <algorithm>
#include <bit>

#include "tests/emulation/async_machine.h"

namespace slipstream::emulation {
namespace {

using kernels::hopper::TensorShape;
constexpr size_t kSumAt = 15, kSizesAt = 2, kStridesAt = 5, kBoxAt = 9, kStepsAt = 10;  // words

uint64_t sum_of(const CUtensorMap& map) {
  uint64_t sum = 0x736c697073747265;
  for (size_t i = 0; i < kSumAt; ++i) sum = (std::rotl(sum, 7) ^ map.opaque[i]) * 0x9e3779b97f4a7c15;
  return sum;
}

struct Tiled {
  CUtensorMapDataType type;
  size_t rank;
  const void* base;
  const cuuint64_t* sizes;
  const cuuint64_t* strides;  // of dimensions 1 and higher
  const cuuint32_t* box;
  const cuuint32_t* steps;
  CUtensorMapInterleave interleave;
  CUtensorMapSwizzle swizzle;
};

/// Source: CUDA driver API (cuda.h), cuTensorMapEncodeTiled.
bool allowed(const Tiled& of) {
  const uint64_t element = of.type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
  const bool interleaved = of.interleave != CU_TENSOR_MAP_INTERLEAVE_NONE;
  const uint64_t alignment = of.interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16;
  if (of.rank < (interleaved ? 3 : 1) || of.rank > 5) return false;
  if (reinterpret_cast<uintptr_t>(of.base) % alignment != 0) return false;
  for (size_t d = 0; d < of.rank; ++d) {
    if (of.sizes[d] < 1 || of.sizes[d] > uint64_t{1} << 32) return false;
    if (of.box[d] < 1 || of.box[d] > 256) return false;
    if ((d > 0 || interleaved) && (of.steps[d] < 1 || of.steps[d] > 8)) return false;
  }
  for (size_t d = 0; d + 1 < of.rank; ++d) {
    if (of.strides[d] % alignment != 0 || of.strides[d] >= uint64_t{1} << 40) return false;
    if (d > 0 && of.strides[d] < of.sizes[d]) return false;
  }
  if (of.interleave == CU_TENSOR_MAP_INTERLEAVE_32B) return of.swizzle == CU_TENSOR_MAP_SWIZZLE_32B;
  const uint64_t row_bytes = element * of.box[0];
  if (interleaved) return true;
  return row_bytes % 16 == 0 &&
         (of.swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || row_bytes <= uint64_t{16} << static_cast<int>(of.swizzle));
}

}  // namespace

TensorShape decoded(const TensorMap& map, const char* operation, const std::source_location& at) {
  if (reinterpret_cast<uintptr_t>(&map) % 64 != 0)
    fail(source::kTensorMaps,
         fmt::format("{} at {} with a map that is not aligned to 64 bytes", operation, file_of(at)));
  const auto& words = map.opaque;
  if (words[kSumAt] != sum_of(map))
    fail(source::kTensorMaps,
         fmt::format("{} at {} with a map whose bytes cuTensorMapEncodeTiled did not write", operation, file_of(at)));
  const auto byte = [&](size_t word, size_t i) { return static_cast<uint32_t>(words[word] >> 8 * i & 0xff); };
  TensorShape shape{.base = reinterpret_cast<const void*>(words[0]),
                    .rank = static_cast<int>(byte(1, 1)),
                    .swizzle = static_cast<Swizzle>(byte(1, 3))};
  bool steps = false;
  for (size_t d = 0; d < static_cast<size_t>(shape.rank); ++d) {
    shape.sizes[d] = 1 + (words[kSizesAt + d / 2] >> 32 * (d % 2) & 0xffffffff);
    if (d > 0) shape.strides_bytes[d] = 16 * words[kStridesAt + d - 1];
    shape.box[d] = 1 + byte(kBoxAt, d);
    steps |= d > 0 && byte(kStepsAt, d) != 1;
  }
  if (byte(1, 0) != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || byte(1, 2) != CU_TENSOR_MAP_INTERLEAVE_NONE || steps ||
      byte(1, 5) != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
    fail(source::kEmulator,
         fmt::format("{} at {} with a map of other elements than bfloat16, interleaved, with steps or filled with NaN, "
                     "which the emulated TMA does not have",
                     operation, file_of(at)));
  return shape;
}

}  // namespace slipstream::emulation

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* base,
                                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  using namespace slipstream::emulation;
  if (!map || reinterpret_cast<uintptr_t>(map) % 64 != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type != CU_TENSOR_MAP_DATA_TYPE_FLOAT32 &&
      type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16)
    return CUDA_ERROR_INVALID_VALUE;
  if (interleave > CU_TENSOR_MAP_INTERLEAVE_32B || swizzle > CU_TENSOR_MAP_SWIZZLE_128B ||
      promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B || fill > CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA)
    return CUDA_ERROR_INVALID_VALUE;
  if (!allowed({type, rank, base, sizes, strides, box, steps, interleave, swizzle})) return CUDA_ERROR_INVALID_VALUE;
  *map = {};
  auto& words = map->opaque;
  const auto put = [&](size_t word, size_t i, uint64_t value) { words[word] |= value << 8 * i; };
  words[0] = reinterpret_cast<uintptr_t>(base);
  const uint64_t kinds[] = {static_cast<uint64_t>(type),       rank,
                            static_cast<uint64_t>(interleave), static_cast<uint64_t>(swizzle),
                            static_cast<uint64_t>(promotion),  static_cast<uint64_t>(fill)};
  for (size_t i = 0; i < std::size(kinds); ++i) put(1, i, kinds[i]);
  for (size_t d = 0; d < rank; ++d) {
    put(kSizesAt + d / 2, 4 * (d % 2), sizes[d] - 1);
    if (d > 0) words[kStridesAt + d - 1] = strides[d - 1] / 16;
    put(kBoxAt, d, box[d] - 1);
    put(kStepsAt, d, d > 0 ? steps[d] : 1);
  }
  words[kSumAt] = sum_of(*map);
  return CUDA_SUCCESS;
}

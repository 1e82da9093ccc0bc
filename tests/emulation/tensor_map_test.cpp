// SPDX-License-Identifier: Apache-2.0
// The emulated driver encodes the tensor maps that its manual allows, and what TMA decodes is what was encoded.

#include <hopper.h>

#include <functional>
#include <random>

#include "tests/emulation/async_machine.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::kernels::hopper;

namespace {

/// Arguments of cuTensorMapEncodeTiled: those of a valid map of rank 3.
struct Arguments {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  cuuint32_t rank = 3;
  uintptr_t base = 1 << 20;
  cuuint64_t sizes[5] = {64, 12, 100, 1, 1}, strides[4] = {128, 1536, 1536, 1536};
  cuuint32_t box[5] = {64, 1, 32, 1, 1}, steps[5] = {1, 1, 1, 1, 1};
  CUtensorMapInterleave interleave = CU_TENSOR_MAP_INTERLEAVE_NONE;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
  CUtensorMapFloatOOBfill fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;

  CUresult encode(CUtensorMap* map) const {
    return cuTensorMapEncodeTiled(map, type, rank, reinterpret_cast<void*>(base), sizes, strides, box, steps,
                                  interleave, swizzle, promotion, fill);
  }
};

bool takes(const std::function<void(Arguments&)>& change) {
  CUtensorMap map;
  Arguments changed;
  change(changed);
  return changed.encode(&map) == CUDA_SUCCESS;
}

}  // namespace

TEST_CASE("tensor maps: the driver takes what its manual allows, up to the limits") {
  using A = Arguments&;
  CHECK(takes([](A) {}));
  // Rank.
  CHECK_FALSE(takes([](A a) { a.rank = 0; }));
  for (cuuint32_t rank : {1u, 2u, 5u}) CHECK(takes([&](A a) { a.rank = rank; }));
  CHECK_FALSE(takes([](A a) { a.rank = 6; }));
  // The tensor.
  CHECK(takes([](A a) { a.base += 16; }));
  CHECK_FALSE(takes([](A a) { a.base += 8; }));
  for (int d : {0, 1, 2}) {
    CHECK_FALSE(takes([&](A a) { a.sizes[d] = 0; }));
    CHECK_FALSE(takes([&](A a) { a.sizes[d] = (cuuint64_t{1} << 32) + 1; }));
    CHECK_FALSE(takes([&](A a) { a.box[d] = 0; }));
    CHECK_FALSE(takes([&](A a) { a.box[d] = 257; }));
  }
  CHECK(takes([](A a) { a.sizes[2] = cuuint64_t{1} << 32, a.strides[1] = (cuuint64_t{1} << 40) - 16; }));
  CHECK(takes([](A a) { a.box[2] = 256; }));
  for (int d : {0, 1}) {
    CHECK_FALSE(takes([&](A a) { a.strides[d] += 8; }));
    CHECK_FALSE(takes([&](A a) { a.strides[d] = cuuint64_t{1} << 40; }));
  }
  CHECK_FALSE(takes([](A a) { a.sizes[1] = 1537; }));  // more than the bytes of its stride
  // Rows of the box: multiples of 16 bytes that a swizzle holds.
  CHECK(takes([](A a) { a.box[0] = 8; }));
  CHECK_FALSE(takes([](A a) { a.box[0] = 4; }));
  CHECK_FALSE(takes([](A a) { a.box[0] = 72; }));
  CHECK(takes([](A a) { a.box[0] = 72, a.swizzle = CU_TENSOR_MAP_SWIZZLE_NONE; }));
  CHECK_FALSE(takes([](A a) { a.swizzle = CU_TENSOR_MAP_SWIZZLE_64B; }));
  CHECK(takes([](A a) { a.box[0] = 32, a.swizzle = CU_TENSOR_MAP_SWIZZLE_64B; }));
  CHECK_FALSE(takes([](A a) { a.box[0] = 32, a.swizzle = CU_TENSOR_MAP_SWIZZLE_32B; }));
  CHECK_FALSE(takes([](A a) { a.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32; }));  // 256 bytes
  CHECK(takes([](A a) { a.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32, a.box[0] = 32; }));
  // Steps; the first one is not used without interleaving.
  for (cuuint32_t step : {0u, 9u}) {
    CHECK(takes([&](A a) { a.steps[0] = step; }));
    CHECK_FALSE(takes([&](A a) { a.steps[1] = step; }));
  }
  CHECK(takes([](A a) { a.steps[1] = 8; }));
  // Interleaving.
  const auto interleaved = [](A a) {
    a.interleave = CU_TENSOR_MAP_INTERLEAVE_32B, a.swizzle = CU_TENSOR_MAP_SWIZZLE_32B, a.box[0] = 16;
  };
  CHECK(takes(interleaved));
  CHECK_FALSE(takes([&](A a) { interleaved(a), a.rank = 2; }));
  CHECK_FALSE(takes([&](A a) { interleaved(a), a.base += 16; }));
  CHECK_FALSE(takes([&](A a) { interleaved(a), a.strides[0] += 16; }));
  CHECK_FALSE(takes([&](A a) { interleaved(a), a.steps[0] = 0; }));
  CHECK_FALSE(takes([&](A a) { interleaved(a), a.swizzle = CU_TENSOR_MAP_SWIZZLE_NONE; }));
  // Enumerations, and the place of the map.
  CHECK_FALSE(takes([](A a) { a.type = static_cast<CUtensorMapDataType>(16); }));
  CHECK_FALSE(takes([](A a) { a.swizzle = static_cast<CUtensorMapSwizzle>(7); }));
  CHECK_FALSE(takes([](A a) { a.promotion = static_cast<CUtensorMapL2promotion>(4); }));
  CHECK_FALSE(takes([](A a) { a.fill = static_cast<CUtensorMapFloatOOBfill>(2); }));
  alignas(64) unsigned char bytes[sizeof(CUtensorMap) + 32];
  CHECK(Arguments().encode(reinterpret_cast<CUtensorMap*>(bytes)) == CUDA_SUCCESS);
  CHECK(Arguments().encode(reinterpret_cast<CUtensorMap*>(bytes + 32)) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("tensor maps: TMA decodes what was encoded, and the driver takes every shape that fits") {
  std::mt19937 random(1);
  const auto one_of = [&](std::initializer_list<uint64_t> values) { return values.begin()[random() % values.size()]; };
  int maps = 0;
  for (int i = 0; i < 20000; ++i) {
    TensorShape shape{.base = reinterpret_cast<const void*>(one_of({1 << 20, (1 << 20) + 16, (1 << 20) + 8})),
                      .rank = static_cast<int>(one_of({1, 2, 3, 4, 5, 6})),
                      .swizzle = static_cast<Swizzle>(random() % 4)};
    for (int d = 0; d < std::min(shape.rank, 5); ++d) {
      shape.sizes[d] = one_of({1, 2, 64, 1000, uint64_t{1} << 32, d == 0 ? 0u : 7u});
      shape.strides_bytes[d] = d == 0 ? 0 : one_of({16, 128, 4096, 40, uint64_t{1} << 39, uint64_t{1} << 40});
      shape.box[d] = static_cast<uint32_t>(d == 0 ? one_of({8, 16, 32, 64, 128, 4}) : one_of({1, 8, 200, 256, 257}));
    }
    TensorMap map;
    std::string reason;
    const bool fits = tensor_shape_fits(shape, reason);
    CAPTURE(i, reason);
    REQUIRE(make_tensor_map(map, shape, reason) == fits);
    if (!fits) continue;
    ++maps;
    const TensorShape seen = emulation::decoded(map, "tma_load", std::source_location::current());
    REQUIRE((seen.base == shape.base && seen.rank == shape.rank && seen.swizzle == shape.swizzle));
    for (int d = 0; d < shape.rank; ++d)
      REQUIRE((seen.sizes[d] == shape.sizes[d] && seen.strides_bytes[d] == shape.strides_bytes[d] &&
               seen.box[d] == shape.box[d]));
  }
  CHECK(maps > 100);
}

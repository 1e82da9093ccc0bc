// SPDX-License-Identifier: Apache-2.0
// Joint operations of a warp's lanes, in a separate file from the kernels, so that these accesses are not instrumented.

#include "tests/emulation/ptx.h"

unsigned __ballot_sync(unsigned mask, int predicate, const std::source_location& here) {
  const auto* lanes = slipstream::emulation::warp_exchange("__ballot_sync", mask, &predicate, sizeof predicate, here);
  unsigned votes = 0;
  for (int l = 0, end = slipstream::emulation::warp_lanes(); l < end; ++l)
    if (slipstream::emulation::from_lane<int>(lanes, l)) votes |= 1u << l;
  return votes;
}

namespace slipstream::kernels::ptx {

namespace detail {
void load_matrix(uint32_t (&matrix)[4], const void* row, bool transposed, const std::source_location& here) {
  emulation::vector_access(row, 16, false, here);
  const emulation::Lane* lanes = emulation::warp_exchange("ldmatrix", 0xffffffffu, &row, sizeof row, here);
  if (emulation::warp_lanes() != 32)
    emulation::fail(emulation::source::kLdmatrix, "ldmatrix in a warp of fewer than 32 threads");
  const int lane = emulation::lane(), major = lane / 4, minor = 2 * (lane % 4);
  for (int i = 0; i < 4; ++i) {
    uint16_t element[2];
    for (int j = 0; j < 2; ++j) {
      const int r = transposed ? minor + j : major, c = transposed ? major : minor + j;
      std::memcpy(&element[j], emulation::from_lane<const unsigned char*>(lanes, 8 * i + r) + 2 * c, 2);
    }
    matrix[i] = element[0] | static_cast<uint32_t>(element[1]) << 16;
  }
}
}  // namespace detail

void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const std::source_location& here) {
  struct Operands {
    uint32_t a[4], b[2];
  } mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const emulation::Lane* lanes = emulation::warp_exchange("mma", 0xffffffffu, &mine, sizeof mine, here);
  if (emulation::warp_lanes() != 32) emulation::fail(emulation::source::kMma, "mma in a warp of fewer than 32 threads");
  const int lane = emulation::lane();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
    float sum = d[i];
    for (int k = 0; k < 16; k += 2) {
      // Element (row, k) of a is in lane 4 (row % 8) + k % 8 / 2, register row / 8 + 2 (k / 8), half k % 2; element
      // (k, column) of b in lane 4 column + k % 8 / 2, register k / 8, half k % 2.
      const auto* left = reinterpret_cast<const Operands*>(lanes[4 * (row % 8) + k % 8 / 2].bytes);
      const auto* right = reinterpret_cast<const Operands*>(lanes[4 * column + k % 8 / 2].bytes);
      const uint32_t x = left->a[row / 8 + 2 * (k / 8)], y = right->b[k / 8];
      sum += bf16_half(x, 0) * bf16_half(y, 0);
      sum += bf16_half(x, 1) * bf16_half(y, 1);
    }
    d[i] = sum;
  }
}

}  // namespace slipstream::kernels::ptx

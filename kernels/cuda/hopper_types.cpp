// SPDX-License-Identifier: Apache-2.0
// The limits of TMA on tensors and boxes (CUDA driver API, cuTensorMapEncodeTiled), and the limits of the registers
// that warpgroups exchange, as sentences.

#include "kernels/cuda/hopper_types.h"

#include <fmt/core.h>

#include "engine/base/check.h"

namespace slipstream::kernels::hopper {

void require_registers(const char* kernel, int threads, int at_launch, int wanted) {
  const int warpgroups = threads / 128, each = (at_launch + 7) / 8 * 8;  // allocated in units of 8
  if (wanted <= warpgroups * each) return;
  throw ResourceError(
      "[cuda] {} would never end on this GPU: its {} warpgroups exchange {} registers a thread in all, and the "
      "compiler launches them with {} ({} each). Build with CUDA 13.0, without -G and "
      "-maxrregcount, or set SLIPSTREAM_ATTENTION=mma.",
      kernel, warpgroups, wanted, warpgroups * each, each);
}

bool tensor_shape_fits(const TensorShape& shape, std::string& reason) {
  const auto refuse = [&](std::string why) {
    reason = std::move(why);
    return false;
  };
  if (shape.rank < 2 || shape.rank > 5) return refuse(fmt::format("rank {} is not 2 to 5", shape.rank));
  if (const uintptr_t beyond = reinterpret_cast<uintptr_t>(shape.base) % 16; beyond != 0)
    return refuse(fmt::format("the tensor begins {} bytes after a multiple of 16", beyond));
  for (size_t d = 0; d < static_cast<size_t>(shape.rank); ++d) {
    if (shape.sizes[d] < 1 || shape.sizes[d] > uint64_t{1} << 32)
      return refuse(fmt::format("dimension {} has {} elements, not 1 to 2^32", d, shape.sizes[d]));
    if (d > 0 && (shape.strides_bytes[d] % 16 != 0 || shape.strides_bytes[d] >= uint64_t{1} << 40))
      return refuse(fmt::format("the stride of dimension {} is {} bytes, not a multiple of 16 below 2^40", d,
                                shape.strides_bytes[d]));
    if (d > 1 && shape.strides_bytes[d] < shape.sizes[d - 1])
      return refuse(fmt::format("the stride of dimension {} is {} bytes, fewer than the {} elements of dimension {}", d,
                                shape.strides_bytes[d], shape.sizes[d - 1], d - 1));
    if (shape.box[d] < 1 || shape.box[d] > 256)
      return refuse(fmt::format("the box has {} elements of dimension {}, not 1 to 256", shape.box[d], d));
  }
  const uint32_t row_bytes = 2 * shape.box[0], span = span_bytes(shape.swizzle);
  if (shape.swizzle == Swizzle::none && row_bytes % 16 != 0)
    return refuse(fmt::format("rows of the box have {} bytes, not a multiple of 16", row_bytes));
  if (shape.swizzle != Swizzle::none && row_bytes != span)
    return refuse(fmt::format("rows of the box have {} bytes, but a swizzle of {} bytes needs rows of {}", row_bytes,
                              span, span));
  return true;
}

}  // namespace slipstream::kernels::hopper

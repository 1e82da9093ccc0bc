// SPDX-License-Identifier: Apache-2.0
#pragma once
// The additions of host collectives, and the division of a message into one part per rank.

#include <cstddef>
#include <cstdint>

#include "engine/base/dtype.h"

namespace slipstream::comm {

/// Elements [begin, begin + elems) of a message.
struct Part {
  int64_t begin = 0;
  int64_t elems = 0;
};

/// Part `index` of `parts` parts. Their sizes differ by at most one element, and the larger ones come first. Pure.
Part part_of(int64_t elems, int parts, int index);

constexpr bool can_sum(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f64; }

/// to[i] = ((from[0][i] + from[1][i]) + from[2][i]) + ..., where f32 and bf16 add in float and f64 in double, rounded
/// once. `to` may be any of `from`. Pure.
void sum(DType dtype, std::byte* to, const std::byte* const* from, int count, int64_t elems);

}  // namespace slipstream::comm

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bytes of floats on the wire: float32, bfloat16, or int8 in blocks with one scale each.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/base/units.h"

namespace slipstream {

/// On the wire, DType::u8 has this layout: a part of `elems` values is int8[elems], then one float scale per block of
/// kWireBlockElems, then padding to 16 bytes. Value i is int8[i] x scale[i / kWireBlockElems]. Blocks never straddle
/// parts.
constexpr int64_t kWireBlockElems = 128;

/// Encoded parts are multiples of this; buckets are padded to it.
constexpr int64_t kWirePartElems = 16;

/// Bytes of one part on the wire: f32, bf16, or u8 as above. Pure.
constexpr int64_t encoded_bytes(int64_t elems, DType wire) {
  if (wire != DType::u8) return bytes_of(elems, wire);
  return round_up(elems + 4 * ceil_div(elems, kWireBlockElems), 16);
}

/// "float32", "bfloat16" or "int8". Pure.
constexpr std::string_view wire_name(DType wire) { return wire == DType::u8 ? "int8" : name_of(wire); }

}  // namespace slipstream

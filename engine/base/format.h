// SPDX-License-Identifier: Apache-2.0
#pragma once
// Formats: how values are stored in memory and while they travel.

#include <cstdint>
#include <string_view>

#include "engine/base/dtype.h"
#include "engine/base/units.h"

namespace slipstream {

/// Elements of one type, either alone or in blocks that share one scale. A part of n elements in blocks has this
/// layout: element[n], then one scale per block of `block_elems`, then padding to 16 bytes. Value i is element[i] x
/// scale[i / block_elems]. A block never lies in two parts.
struct Format {
  DType element = DType::f32;
  int32_t block_elems = 0;   // 0: no scales
  DType scale = DType::f32;  // the type of the scales

  constexpr Format() = default;
  constexpr Format(DType of) : element(of) {}  // NOLINT(google-explicit-constructor): a type alone is a format
  constexpr Format(DType of, int32_t block, DType scales) : element(of), block_elems(block), scale(scales) {}
  constexpr bool operator==(const Format&) const = default;

  constexpr bool is_scaled() const { return block_elems > 0; }
};
/// DType::u8 holds the bits of an int8.
constexpr Format kInt8{DType::u8, 128, DType::f32};

/// The number of elements in an encoded part is a multiple of this. Buckets are padded to it.
constexpr int64_t kWirePartElems = 16;

/// Returns the bytes of one part. Pure.
constexpr int64_t encoded_bytes(int64_t elems, const Format& format) {
  if (!format.is_scaled()) return bytes_of(elems, format.element);
  return round_up(
      bytes_of(elems, format.element) + bytes_of(ceil_div(elems, int64_t{format.block_elems}), format.scale), 16);
}

/// Returns "float32", "bfloat16" or "int8". Pure.
constexpr std::string_view name_of(const Format& format) { return format == kInt8 ? "int8" : name_of(format.element); }

}  // namespace slipstream

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The checks that every op makes before it runs, and the error for a device without a kernel for it.

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "engine/base/dtype.h"
#include "engine/device/work.h"

namespace slipstream::kernels {

/// Pure. Throws: ShapeError if `dtype` is neither f32 nor bf16.
void require_activation_dtype(std::string_view op, DType dtype);

/// Pure. Throws: ShapeError if `value` < `least`.
void require_at_least(std::string_view op, std::string_view name, int64_t value, int64_t least);

/// Pure. Throws: ShapeError with the index of the first null pointer, counted from 0.
void require_pointers(std::string_view op, std::initializer_list<const void*> pointers);

/// Throws: ResourceError, because `op` has no kernel for `kind` in this build.
[[noreturn]] void no_kernel(std::string_view op, DeviceKind kind);

}  // namespace slipstream::kernels

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The checks that every op makes before it runs, and the error for a device that it has no kernel for.

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "engine/base/dtype.h"
#include "engine/device/work.h"

namespace slipstream::kernels {

/// Throws: ShapeError if `dtype` is neither f32 nor bf16. Pure.
void require_activation_dtype(std::string_view op, DType dtype);

/// Throws: ShapeError if `value` < `least`. Pure.
void require_at_least(std::string_view op, std::string_view name, int64_t value, int64_t least);

/// Throws: ShapeError if one of `pointers` is null; the sentence has its place in the list, from 0. Pure.
void require_pointers(std::string_view op, std::initializer_list<const void*> pointers);

/// Throws: ResourceError: `op` has no kernel for `kind` in this build.
[[noreturn]] void no_kernel(std::string_view op, DeviceKind kind);

}  // namespace slipstream::kernels

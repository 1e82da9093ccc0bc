// SPDX-License-Identifier: Apache-2.0
#pragma once
// The questions that every op asks before it runs: is the device known here, are the sizes and pointers sane?

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "engine/base/check.h"
#include "engine/base/dtype.h"
#include "engine/device/work.h"

namespace slipstream::kernels {

/// Throws: ResourceError unless the work runs on cpu.
inline void require_cpu(const LaunchContext& context, std::string_view op) {
  if (context.kind != DeviceKind::cpu)
    throw ResourceError("[{}] this build has no kernel for the {} device, only for cpu. Set device.kind = \"cpu\".", op,
                        context.kind == DeviceKind::cuda ? "cuda" : "sim");
  SLIP_ASSERT(context.pool != nullptr);
}

/// Throws: ShapeError unless every size is at least 0.
inline void require_sizes(std::string_view op, std::initializer_list<int64_t> sizes) {
  for (int64_t size : sizes)
    if (size < 0) throw ShapeError("[{}] sizes must be at least 0: got {}. Check the shapes given to this op.", op, size);
}

/// Throws: ShapeError unless activations are float32 or bfloat16.
inline void require_float(std::string_view op, DType dtype) {
  if (dtype != DType::f32 && dtype != DType::bf16)
    throw ShapeError("[{}] elements must be float32 or bfloat16: got {}.", op, name_of(dtype));
}

/// Throws: ShapeError if a pointer is null. Call only when the op has elements to touch.
inline void require_operands(std::string_view op, std::initializer_list<const void*> pointers) {
  for (const void* pointer : pointers)
    if (pointer == nullptr) throw ShapeError("[{}] an operand that is not optional has no address (null pointer).", op);
}

}  // namespace slipstream::kernels

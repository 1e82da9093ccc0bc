// SPDX-License-Identifier: Apache-2.0
// The error messages of the checks that every op makes.

#include "kernels/common/checks.h"

#include "engine/base/check.h"

namespace slipstream::kernels {

void require_activation_dtype(std::string_view op, DType dtype) {
  if (dtype != DType::f32 && dtype != DType::bf16)
    throw ShapeError("[{}] the element type is {}, need float32 or bfloat16.", op, name_of(dtype));
}

void require_at_least(std::string_view op, std::string_view name, int64_t value, int64_t least) {
  if (value < least) throw ShapeError("[{}] {} is {}, need at least {}.", op, name, value, least);
}

void require_pointers(std::string_view op, std::initializer_list<const void*> pointers) {
  int place = 0;
  for (const void* pointer : pointers) {
    if (!pointer)
      throw ShapeError("[{}] operand {} is null. Pass every operand that is not optional in the op's header.", op,
                       place);
    ++place;
  }
}

void no_kernel(std::string_view op, DeviceKind kind) {
  const char* name = kind == DeviceKind::cuda ? "cuda" : kind == DeviceKind::sim ? "sim" : "cpu";
  throw ResourceError("[{}] this build has no {} kernel for this op. Run it on device cpu.", op, name);
}

}  // namespace slipstream::kernels

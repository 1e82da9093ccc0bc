// SPDX-License-Identifier: Apache-2.0
// The residual sum on the CPU.

#include "kernels/common/vectors.h"
#include "kernels/residual/residual.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

template <typename T>
void add(LaunchContext& context, const Residual& args) {
  const T* const a = static_cast<const T*>(args.a);
  const T* const b = static_cast<const T*>(args.b);
  T* const y = static_cast<T*>(args.y);
  context.parallel_for(args.elems, 16384, [&](int64_t begin, int64_t end) {
    for_vectors(begin, end, [&](auto lanes, int64_t i) { lanes.store(y + i, lanes.load(a + i) + lanes.load(b + i)); });
  });
}

}  // namespace

void residual_cpu(LaunchContext& context, const Residual& args) {
  if (args.dtype == DType::f32) return add<float>(context, args);
  add<bfloat16>(context, args);
}

}  // namespace slipstream::kernels::SLIP_ISA

// SPDX-License-Identifier: Apache-2.0
// The rotary position embedding on the CPU.

#include "kernels/common/vectors.h"
#include "kernels/rope/rope.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

template <typename T>
void rotate(LaunchContext& context, const Rope& args) {
  const int64_t half = args.head_dim / 2;
  const float sign = args.inverse ? -1.0f : 1.0f;
  context.parallel_for(args.batch * args.tokens, 8, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const cosines = args.table + (row % args.tokens + args.position_offset) * args.head_dim;
      const float* const sines = cosines + half;
      for (int64_t head = 0; head < args.heads; ++head) {
        T* const first = static_cast<T*>(args.x) + row * args.row_stride + head * args.head_dim;
        T* const second = first + half;
        for_vectors(0, half, [&](auto lanes, int64_t j) {
          const Vf a = lanes.load(first + j);
          const Vf b = lanes.load(second + j);
          const Vf c = lanes.load(cosines + j);
          const Vf s = lanes.load(sines + j) * sign;
          lanes.store(first + j, a * c - b * s);
          lanes.store(second + j, b * c + a * s);
        });
      }
    }
  });
}

}  // namespace

void rope_cpu(LaunchContext& context, const Rope& args) {
  if (args.dtype == DType::f32) return rotate<float>(context, args);
  rotate<bfloat16>(context, args);
}

}  // namespace slipstream::kernels::SLIP_ISA

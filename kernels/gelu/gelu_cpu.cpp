// SPDX-License-Identifier: Apache-2.0
// GELU on the CPU: one exponential per element.

#include "kernels/common/vectors.h"
#include "kernels/gelu/gelu.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

constexpr float kTwoRootTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;
/// Below this, GELU is 0 (below 1e-36) and its slope is 0 or 1. 0 * infinity must not occur there.
constexpr float kLeast = -10.0f;
constexpr int64_t kGrain = 4096;

/// 1 / (1 + e^(-2u)); at x = -10 the exponential is e^87.3, still a float.
inline Vf gate(Vf x, Vf square) {
  const Vf minus_2u = x * (square * (-kTwoRootTwoOverPi * kCubic) - kTwoRootTwoOverPi);
  return 1.0f / (1.0f + exp_bounded(minus_2u));
}

template <typename T>
void forward(LaunchContext& context, const GeluForward& args) {
  const T* const from = static_cast<const T*>(args.x);
  T* const to = static_cast<T*>(args.y);
  context.parallel_for(args.elems, kGrain, [&](int64_t begin, int64_t end) {
    for_vectors(begin, end, [&](auto lanes, int64_t i) {
      const Vf x = max(splat(kLeast), lanes.load(from + i));
      lanes.store(to + i, x * gate(x, x * x));
    });
  });
}

template <typename T>
void backward(LaunchContext& context, const GeluBackward& args) {
  const T* const from = static_cast<const T*>(args.x);
  const T* const dy = static_cast<const T*>(args.dy);
  T* const dx = static_cast<T*>(args.dx);
  context.parallel_for(args.elems, kGrain, [&](int64_t begin, int64_t end) {
    for_vectors(begin, end, [&](auto lanes, int64_t i) {
      const Vf x = min(splat(-kLeast), max(splat(kLeast), lanes.load(from + i)));
      const Vf square = x * x;
      const Vf s = gate(x, square);
      const Vf slope = square * (3.0f * kTwoRootTwoOverPi * kCubic) + kTwoRootTwoOverPi;
      lanes.store(dx + i, lanes.load(dy + i) * (s + x * s * (1.0f - s) * slope));
    });
  });
}

}  // namespace

void gelu_forward_cpu(LaunchContext& context, const GeluForward& args) {
  if (args.dtype == DType::f32) return forward<float>(context, args);
  forward<bfloat16>(context, args);
}

void gelu_backward_cpu(LaunchContext& context, const GeluBackward& args) {
  if (args.dtype == DType::f32) return backward<float>(context, args);
  backward<bfloat16>(context, args);
}

}  // namespace slipstream::kernels::SLIP_ISA

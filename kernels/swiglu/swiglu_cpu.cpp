// SPDX-License-Identifier: Apache-2.0
// SwiGLU on the CPU: one exponential per element of the gate.

#include "kernels/common/vectors.h"
#include "kernels/swiglu/swiglu.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

/// Below this, silu and its slope are 0 (below 1e-36), and e^88 is still a float.
constexpr float kLeast = -88.0f;

inline int64_t grain_rows(int64_t width) { return 4096 / width + 1; }

template <typename T>
void forward(LaunchContext& context, const SwigluForward& args) {
  const int64_t width = args.width;
  context.parallel_for(args.rows, grain_rows(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* const gates = static_cast<const T*>(args.gate_up) + row * 2 * width;
      T* const y = static_cast<T*>(args.y) + row * width;
      for_vectors(0, width, [&](auto lanes, int64_t i) {
        const Vf gate = max(splat(kLeast), lanes.load(gates + i));
        lanes.store(y + i, gate * lanes.load(gates + width + i) / (1.0f + exp_bounded(-gate)));
      });
    }
  });
}

template <typename T>
void backward(LaunchContext& context, const SwigluBackward& args) {
  const int64_t width = args.width;
  context.parallel_for(args.rows, grain_rows(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* const dys = static_cast<const T*>(args.dy) + row * width;
      const T* const gates = static_cast<const T*>(args.gate_up) + row * 2 * width;
      T* const dgates = static_cast<T*>(args.dgate_up) + row * 2 * width;
      for_vectors(0, width, [&](auto lanes, int64_t i) {
        const Vf gate = max(splat(kLeast), lanes.load(gates + i));
        const Vf up = lanes.load(gates + width + i);
        const Vf s = 1.0f / (1.0f + exp_bounded(-gate));
        const Vf dy = lanes.load(dys + i) * s;
        lanes.store(dgates + i, dy * up * (gate * (1.0f - s) + 1.0f));
        lanes.store(dgates + width + i, dy * gate);
      });
    }
  });
}

}  // namespace

void swiglu_forward_cpu(LaunchContext& context, const SwigluForward& args) {
  if (args.dtype == DType::f32) return forward<float>(context, args);
  forward<bfloat16>(context, args);
}

void swiglu_backward_cpu(LaunchContext& context, const SwigluBackward& args) {
  if (args.dtype == DType::f32) return backward<float>(context, args);
  backward<bfloat16>(context, args);
}

}  // namespace slipstream::kernels::SLIP_ISA

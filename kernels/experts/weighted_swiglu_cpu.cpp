// SPDX-License-Identifier: Apache-2.0
// The weighted SwiGLU on the CPU: one exponential per element of the gate.

#include <algorithm>

#include "kernels/common/vectors.h"
#include "kernels/experts/weighted_swiglu.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

/// Below this, silu and its slope are 0 (below 1e-36), and e^88 is still a float.
constexpr float kLeast = -88.0f;

/// Calls body(row) for the rows that exist.
template <typename Args, typename Body>
void for_rows(LaunchContext& context, const Args& args, const Body& body) {
  const int64_t rows = args.count == nullptr ? args.max_rows : std::clamp<int64_t>(*args.count, 0, args.max_rows);
  context.parallel_for(rows, 4096 / args.width + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

template <typename T>
void forward(LaunchContext& context, const WeightedSwigluForward& args) {
  const int64_t width = args.width;
  for_rows(context, args, [&](int64_t row) {
    const T* const gates = static_cast<const T*>(args.gate_up) + row * 2 * width;
    T* const y = static_cast<T*>(args.y) + row * width;
    const float weight = args.weights[row];
    for_vectors(0, width, [&](auto lanes, int64_t i) {
      const Vf gate = max(splat(kLeast), lanes.load(gates + i));
      lanes.store(y + i, gate * weight * lanes.load(gates + width + i) / (1.0f + exp_bounded(-gate)));
    });
  });
}

template <typename T>
void backward(LaunchContext& context, const WeightedSwigluBackward& args) {
  const int64_t width = args.width;
  for_rows(context, args, [&](int64_t row) {
    const T* const dys = static_cast<const T*>(args.dy) + row * width;
    const T* const gates = static_cast<const T*>(args.gate_up) + row * 2 * width;
    T* const dgates = static_cast<T*>(args.dgate_up) + row * 2 * width;
    const float weight = args.weights[row];
    Vf total = {};
    for_vectors(0, width, [&](auto lanes, int64_t i) {
      const Vf gate = max(splat(kLeast), lanes.load(gates + i));
      const Vf up = lanes.load(gates + width + i);
      const Vf s = 1.0f / (1.0f + exp_bounded(-gate));
      const Vf dy = lanes.load(dys + i) * s;
      total += lanes.keep(dy * gate * up);
      lanes.store(dgates + i, dy * weight * up * (gate * (1.0f - s) + 1.0f));
      lanes.store(dgates + width + i, dy * weight * gate);
    });
    args.dweights[row] = sum(total);
  });
}

}  // namespace

void weighted_swiglu_forward_cpu(LaunchContext& context, const WeightedSwigluForward& args) {
  if (args.dtype == DType::f32) return forward<float>(context, args);
  forward<bfloat16>(context, args);
}

void weighted_swiglu_backward_cpu(LaunchContext& context, const WeightedSwigluBackward& args) {
  if (args.dtype == DType::f32) return backward<float>(context, args);
  backward<bfloat16>(context, args);
}

}  // namespace slipstream::kernels::SLIP_ISA

// SPDX-License-Identifier: Apache-2.0
// The element-wise passes of Muon, vector by vector.

#include "kernels/common/simd.h"
#include "kernels/muon/muon_passes.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

// Elements per unit of the thread split: whole pages of every stream.
constexpr int64_t kUnit = 1024;

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

template <typename T>
Vf load_lanes(const T* p, int64_t lanes) {
  return lanes == kLanes ? load(p) : load_part(p, lanes);
}
template <typename T>
void store_lanes(T* p, Vf value, int64_t lanes) {
  lanes == kLanes ? store(p, value) : store_part(p, value, lanes);
}

/// Calls body(first, lanes) for every vector of [0, elems). The bits of an element do not depend on where a part ends.
template <typename Body>
void for_vectors(LaunchContext& context, int64_t elems, const Body& body) {
  context.parallel_for((elems + kUnit - 1) / kUnit, 8, [&](int64_t first, int64_t last) {
    const int64_t end = smaller(last * kUnit, elems);
    for (int64_t i = first * kUnit; i < end; i += kLanes) body(i, smaller(kLanes, end - i));
  });
}

template <typename T>
void normalize(LaunchContext& context, const MuonNormalize& args, float factor) {
  auto* x = static_cast<T*>(args.x);
  for_vectors(context, args.elems, [&](int64_t i, int64_t lanes) {
    store_lanes(x + i, load_lanes(args.direction + i, lanes) * factor, lanes);
  });
}

template <typename T>
void polynomial(LaunchContext& context, const MuonPolynomial& args) {
  const int64_t k = args.k;
  const int64_t grain = 1 + 8 * kUnit / k;
  context.parallel_for(k, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* gram = static_cast<const T*>(args.gram) + row * k;
      T* square = static_cast<T*>(args.square) + row * k;
      const float diagonal = args.a + args.b * static_cast<float>(gram[row]) + args.c * static_cast<float>(square[row]);
      for (int64_t i = 0; i < k; i += kLanes) {
        const int64_t lanes = smaller(kLanes, k - i);
        store_lanes(square + i, load_lanes(gram + i, lanes) * args.b + load_lanes(square + i, lanes) * args.c, lanes);
      }
      square[row] = T(diagonal);
    }
  });
}

template <typename T>
void update(LaunchContext& context, const MuonStep& args) {
  const auto* x = static_cast<const T*>(args.x);
  const float decay = args.scalars->decay, rate = args.scalars->learning_rate * args.scale;
  const bool skips = args.scalars->clip < 0.0f;
  for_vectors(context, args.elems, [&](int64_t i, int64_t lanes) {
    Vf p = load_lanes(args.parameters + i, lanes);
    if (!skips) p = p * decay - load_lanes(x + i, lanes) * rate;
    store_lanes(args.updated + i, p, lanes);
    if (args.working != nullptr) store_lanes(args.working + i, p, lanes);
  });
}

}  // namespace

void muon_momentum_cpu(LaunchContext& context, const MuonMomentum& args) {
  const float mu = args.mu, factor = (1.0f - mu) * args.scalars->clip;
  if (args.scalars->clip < 0.0f)
    return for_vectors(context, args.elems,
                       [&](int64_t i, int64_t lanes) { store_lanes(args.direction + i, Vf{}, lanes); });
  for_vectors(context, args.elems, [&](int64_t i, int64_t lanes) {
    const Vf share = load_lanes(args.gradient + i, lanes) * factor;
    const Vf m = load_lanes(args.momentum + i, lanes) * mu + share;
    store_lanes(args.momentum + i, m, lanes);
    store_lanes(args.direction + i, args.nesterov ? m * mu + share : m, lanes);
  });
}

void muon_normalize_cpu(LaunchContext& context, const MuonNormalize& args) {
  const double norm = std::sqrt(*args.sum_squares), eps = static_cast<double>(args.eps);
  const auto factor = static_cast<float>(1.0 / (norm < eps ? eps : norm));
  args.dtype == DType::f32 ? normalize<float>(context, args, factor) : normalize<bfloat16>(context, args, factor);
}

void muon_polynomial_cpu(LaunchContext& context, const MuonPolynomial& args) {
  args.dtype == DType::f32 ? polynomial<float>(context, args) : polynomial<bfloat16>(context, args);
}

void muon_step_cpu(LaunchContext& context, const MuonStep& args) {
  args.dtype == DType::f32 ? update<float>(context, args) : update<bfloat16>(context, args);
}

}  // namespace slipstream::kernels::SLIP_ISA

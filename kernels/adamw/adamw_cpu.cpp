// SPDX-License-Identifier: Apache-2.0
// AdamW in one pass over parameters, moments and gradient.

#include "kernels/adamw/adamw.h"

#include "kernels/common/simd.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

// Elements per unit of the split over threads: whole pages of every operand.
constexpr int64_t kUnit = 1024;

// The source works lane by lane, because the vector extension has no square root. The compiled code has one
// instruction.
inline Vf sqrt(Vf x) {
  Vf root;
  for (int i = 0; i < kLanes; ++i) root[i] = __builtin_sqrtf(x[i]);
  return root;
}

struct Factors {
  float clip, keep1, add1, keep2, add2, inv_bias1, inv_bias2, eps, learning_rate, decay;
};

/// The tail calls this function on part of a vector, so the bits of an element do not depend on the end of its range.
inline Vf update(const Factors& f, Vf p, Vf gradient, Vf& m, Vf& v) {
  const Vf g = gradient * f.clip;
  m = m * f.keep1 + g * f.add1;
  v = v * f.keep2 + g * g * f.add2;
  const Vf denominator = sqrt(v * f.inv_bias2) + f.eps;
  return p * f.decay - f.learning_rate * ((m * f.inv_bias1) / denominator);
}

/// Updates the elements [begin, end), with the same factors for all.
void update_range(const Adamw& args, const Factors& f, int64_t begin, int64_t end) {
  float* updated = args.updated != nullptr ? args.updated : args.parameters;
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    Vf m = load(args.m + i), v = load(args.v + i);
    const Vf p = update(f, load(args.parameters + i), load(args.gradient + i), m, v);
    store(args.m + i, m);
    store(args.v + i, v);
    store(updated + i, p);
    if (args.working != nullptr) store(args.working + i, p);
  }
  if (i == end) return;
  const int64_t rest = end - i;
  Vf m = load_part(args.m + i, rest), v = load_part(args.v + i, rest);
  const Vf p = update(f, load_part(args.parameters + i, rest), load_part(args.gradient + i, rest), m, v);
  store_part(args.m + i, m, rest);
  store_part(args.v + i, v, rest);
  store_part(updated + i, p, rest);
  if (args.working != nullptr) store_part(args.working + i, p, rest);
}

/// A skipped step only writes the copies of the parameters.
void keep(LaunchContext& context, const Adamw& args) {
  if (args.updated == nullptr && args.working == nullptr) return;
  context.parallel_for((args.elems + kUnit - 1) / kUnit, 8, [&](int64_t first, int64_t last) {
    const int64_t end = last * kUnit < args.elems ? last * kUnit : args.elems;
    for (int64_t i = first * kUnit; i < end; i += kLanes) {
      const int64_t lanes = end - i < kLanes ? end - i : kLanes;
      const Vf p = load_part(args.parameters + i, lanes);
      if (args.updated != nullptr) store_part(args.updated + i, p, lanes);
      if (args.working != nullptr) store_part(args.working + i, p, lanes);
    }
  });
}

}  // namespace

void adamw_cpu(LaunchContext& context, const Adamw& args) {
  const AdamwScalars s = *args.scalars;
  if (s.clip < 0.0f) return keep(context, args);
  const auto factors_of = [&](const UpdateSpan& span) {
    const float rate = s.learning_rate * span.learning_rate;
    return Factors{
        s.clip,      args.beta1,  1.0f - args.beta1, args.beta2, 1.0f - args.beta2,
        s.inv_bias1, s.inv_bias2, args.eps,          rate,       1.0f - rate * (args.weight_decay * span.weight_decay)};
  };
  context.parallel_for((args.elems + kUnit - 1) / kUnit, 8, [&](int64_t first, int64_t last) {
    const int64_t end = last * kUnit < args.elems ? last * kUnit : args.elems;
    int64_t passed = 0;  // the number of spans
    for (int64_t i = first * kUnit; i < end;) {
      while (passed < args.span_count && args.spans[passed].begin <= i) ++passed;
      const int64_t next = passed < args.span_count && args.spans[passed].begin < end ? args.spans[passed].begin : end;
      update_range(args, factors_of(passed > 0 ? args.spans[passed - 1] : UpdateSpan{}), i, next);
      i = next;
    }
  });
}

}  // namespace slipstream::kernels::SLIP_ISA

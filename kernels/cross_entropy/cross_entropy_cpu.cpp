// SPDX-License-Identifier: Apache-2.0
// Cross-entropy row by row: blocks that are small enough for L1 find maximum and sum, and the row stays in L2 for the
// gradient.

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/cross_entropy/sharded_cross_entropy.h"

#include "kernels/common/simd.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

// The number of elements whose maximum is found before their exponentials are summed: 4 KiB of float.
constexpr int64_t kBlock = 1024;

/// e^x for x <= 0 to about 1 ulp, 0 below -87.3, NaN for NaN. It has fewer operations than exp, because this op
/// consists mostly of exponentials. x = n ln 2 + r; n is in the low bits of `shifted` and moves from there into the
/// exponent.
inline Vf exp_nonpositive(Vf x) {
  const Vf shifted = x * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer
  const Vf n = shifted - 12582912.0f;
  const Vf r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two pieces
  const Vf square = r * r;
  Vf p = 1.9875691500e-4f * r + 1.3981999507e-3f;  // Cephes expf
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * square + (r + 1.0f);
  const Vi power = (reinterpret_cast<Vi>(shifted) << 23) + (127 << 23);
  return x < -87.33f ? Vf{} : p * reinterpret_cast<Vf>(power);
}

struct Normalizer {
  float max = -__builtin_inff();
  double sum = 0.0;  // of e^(x - max)
};

template <typename T>
float block_max(const T* x, int64_t elems) {
  constexpr int64_t kStep = 4 * kLanes;
  const Vf lowest = splat(-__builtin_inff());
  Vf a = lowest, b = lowest, c = lowest, d = lowest;
  int64_t i = 0;
  for (; i + kStep <= elems; i += kStep) {
    a = max(a, load(x + i));
    b = max(b, load(x + i + kLanes));
    c = max(c, load(x + i + 2 * kLanes));
    d = max(d, load(x + i + 3 * kLanes));
  }
  for (; i + kLanes <= elems; i += kLanes) a = max(a, load(x + i));
  float result = max(max(max(a, b), max(c, d)));
  for (; i < elems; ++i) {
    const float value = static_cast<float>(x[i]);
    result = result > value ? result : value;
  }
  return result;
}

/// e^(x - max) of the first `elems` lanes, 0 in the others.
template <typename T>
Vf exp_part(const T* x, float max, int64_t elems) {
  float lanes[kLanes];
  store(lanes, exp_nonpositive(load_part(x, elems) - max));
  return load_part(lanes, elems);
}

template <typename T>
float block_sum(const T* x, int64_t elems, float max) {
  Vf a{}, b{};
  int64_t i = 0;
  for (; i + 2 * kLanes <= elems; i += 2 * kLanes) {
    a += exp_nonpositive(load(x + i) - max);
    b += exp_nonpositive(load(x + i + kLanes) - max);
  }
  for (; i + kLanes <= elems; i += kLanes) a += exp_nonpositive(load(x + i) - max);
  if (i < elems) b += exp_part(x + i, max, elems - i);
  return sum(a + b);
}

template <typename T>
Normalizer normalize(const T* x, int64_t elems) {
  Normalizer n;
  for (int64_t i = 0; i < elems; i += kBlock) {
    const int64_t count = elems - i < kBlock ? elems - i : kBlock;
    const float here = block_max(x + i, count);
    if (here == -__builtin_inff()) continue;  // all are masked: adds nothing, and -inf - -inf would be NaN
    if (!(here <= n.max)) {
      if (n.sum != 0.0) n.sum *= __builtin_exp(static_cast<double>(n.max) - static_cast<double>(here));
      n.max = here;
    }
    n.sum += static_cast<double>(block_sum(x + i, count, n.max));
  }
  return n;
}

/// Replaces logits by the gradient. `target`: a column of x, or none if it is outside [0, vocab).
template <typename T>
void write_gradient(T* x, int64_t vocab, int64_t stride, int64_t target, double logit, const Normalizer& n,
                    float gradient_scale) {
  const float scale = static_cast<float>(static_cast<double>(gradient_scale) / n.sum);
  int64_t i = 0;
  for (; i + kLanes <= vocab; i += kLanes) store(x + i, exp_nonpositive(load(x + i) - n.max) * scale);
  if (i < vocab) store_part(x + i, exp_part(x + i, n.max, vocab - i) * scale, vocab - i);
  if (target >= 0 && target < vocab) {
    // 1 - p of the target is computed in double, because float would cancel for p near 1.
    const double p = __builtin_exp(logit - static_cast<double>(n.max)) / n.sum;
    x[target] = T(static_cast<float>(static_cast<double>(gradient_scale) * (p - 1.0)));
  }
  std::memset(static_cast<void*>(x + vocab), 0, static_cast<size_t>(stride - vocab) * sizeof(T));
}

float loss_of(const Normalizer& n, double logit) {
  return static_cast<float>(__builtin_log(n.sum) + static_cast<double>(n.max) - logit);
}

template <typename T>
void cross_entropy_row(const CrossEntropy& args, int64_t row) {
  T* x = static_cast<T*>(args.logits) + row * args.stride;
  const Normalizer n = normalize(x, args.vocab);
  const int32_t target = args.targets[row];
  const double logit = static_cast<double>(static_cast<float>(x[target]));
  args.row_losses[row] = loss_of(n, logit);
  if (args.backward) write_gradient(x, args.vocab, args.stride, target, logit, n, args.gradient_scale);
}

template <typename T>
void part_row(const CrossEntropyPart& args, int64_t row) {
  const T* x = static_cast<const T*>(args.logits) + row * args.stride;
  const Normalizer n = normalize(x, args.vocab);
  const int64_t target = args.targets[row] - args.first;
  double* part = args.parts + row * kCrossEntropyPartElems;
  part[0] = static_cast<double>(n.max);
  part[1] = n.sum;
  part[2] = target >= 0 && target < args.vocab ? static_cast<double>(static_cast<float>(x[target])) : 0.0;
}

template <typename T>
void merge_row(const CrossEntropyMerge& args, int64_t row) {
  const auto part = [&](int64_t rank) { return args.parts + (rank * args.rows + row) * kCrossEntropyPartElems; };
  Normalizer n;
  double logit = 0.0;
  for (int64_t rank = 0; rank < args.ranks; ++rank) {
    const float max = static_cast<float>(part(rank)[0]);
    n.max = n.max > max ? n.max : max;
    logit += part(rank)[2];
  }
  for (int64_t rank = 0; rank < args.ranks; ++rank)
    if (part(rank)[1] != 0.0) n.sum += part(rank)[1] * __builtin_exp(part(rank)[0] - static_cast<double>(n.max));
  args.row_losses[row] = loss_of(n, logit);
  T* x = static_cast<T*>(args.logits) + row * args.stride;
  if (args.backward)
    write_gradient(x, args.vocab, args.stride, args.targets[row] - args.first, logit, n, args.gradient_scale);
}

template <typename Args, typename Row>
void for_rows(LaunchContext& context, const Args& args, const Row& each) {
  context.parallel_for(args.rows, 1 + 4096 / (args.vocab + 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) each(row);
  });
}

}  // namespace

void cross_entropy_cpu(LaunchContext& context, const CrossEntropy& args) {
  for_rows(context, args, [&](int64_t row) {
    args.dtype == DType::f32 ? cross_entropy_row<float>(args, row) : cross_entropy_row<bfloat16>(args, row);
  });
}

void cross_entropy_part_cpu(LaunchContext& context, const CrossEntropyPart& args) {
  for_rows(context, args,
           [&](int64_t row) { args.dtype == DType::f32 ? part_row<float>(args, row) : part_row<bfloat16>(args, row); });
}

void cross_entropy_merge_cpu(LaunchContext& context, const CrossEntropyMerge& args) {
  for_rows(context, args, [&](int64_t row) {
    args.dtype == DType::f32 ? merge_row<float>(args, row) : merge_row<bfloat16>(args, row);
  });
}

}  // namespace slipstream::kernels::SLIP_ISA

// SPDX-License-Identifier: Apache-2.0
// The norm of heads on the CPU: a head stays in L1 over its passes. Sums over rows are formed in blocks, and then over
// the blocks in order.

#include "kernels/common/row_blocks.h"
#include "kernels/common/vectors.h"
#include "kernels/head_norm/head_norm.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

template <typename T>
inline void forward_row(const HeadNormForward& args, int64_t row) {
  const int64_t size = args.head_dim, normed = args.heads + args.kv_heads, width = (normed + args.kv_heads) * size;
  const T* const x = static_cast<const T*>(args.x) + row * width;
  T* const y = static_cast<T*>(args.y) + row * width;
  for (int64_t head = 0; head < normed; ++head) {
    const T* const weight = static_cast<const T*>(head < args.heads ? args.q_weight : args.k_weight);
    const T* const from = x + head * size;
    T* const to = y + head * size;
    Vf squares = {};
    for_vectors(0, size, [&](auto lanes, int64_t i) {
      const Vf s = lanes.load(from + i);
      squares += s * s;
    });
    const float inv_rms = 1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + args.eps);
    for_vectors(0, size, [&](auto lanes, int64_t i) {
      lanes.store(to + i, rounded_to(to, lanes.load(from + i) * inv_rms) * lanes.load(weight + i));
    });
    args.inv_rms[row * normed + head] = inv_rms;
  }
  std::memcpy(static_cast<void*>(y + normed * size), x + normed * size,
              static_cast<size_t>(args.kv_heads * size) * sizeof(T));
}

/// `sums`: the gradients of the weights of queries, then of keys.
template <typename T>
inline void backward_row(const HeadNormBackward& args, int64_t row, float* sums) {
  const int64_t size = args.head_dim, normed = args.heads + args.kv_heads, width = (normed + args.kv_heads) * size;
  for (int64_t head = 0; head < normed; ++head) {
    const bool query = head < args.heads;
    const T* const weight = static_cast<const T*>(query ? args.q_weight : args.k_weight);
    float* const dweight = query ? sums : sums + size;
    const T* const x = static_cast<const T*>(args.x) + row * width + head * size;
    T* const d = static_cast<T*>(args.d) + row * width + head * size;
    const float inv_rms = args.inv_rms[row * normed + head];
    Vf of_weight = {};
    for_vectors(0, size, [&](auto lanes, int64_t i) {
      const Vf dn = lanes.load(d + i) * (lanes.load(x + i) * inv_rms);
      lanes.store(dweight + i, lanes.load(dweight + i) + dn);
      of_weight += dn * lanes.load(weight + i);
    });
    const float mean = sum(of_weight) / static_cast<float>(size);
    for_vectors(0, size, [&](auto lanes, int64_t i) {
      const Vf n = lanes.load(x + i) * inv_rms, g = lanes.load(d + i) * lanes.load(weight + i);
      lanes.store(d + i, (g - n * mean) * inv_rms);
    });
  }
}

template <typename T>
void run_forward(LaunchContext& context, const HeadNormForward& args) {
  context.parallel_for(args.rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) forward_row<T>(args, row);
  });
}

template <typename T>
void run_backward(LaunchContext& context, const HeadNormBackward& args) {
  const RowBlocks blocks = {args.rows};
  const int64_t size = args.head_dim;
  context.parallel_for(blocks.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      float* const sums = args.workspace + block * 2 * size;
      std::memset(sums, 0, static_cast<size_t>(2 * size) * sizeof(float));
      for (int64_t row = blocks.begin(block); row < blocks.end(block); ++row) backward_row<T>(args, row, sums);
    }
  });
  for (const bool query : {true, false}) {
    float* const to = query ? args.dq_weight : args.dk_weight;
    const float* const from = args.workspace + (query ? 0 : size);
    for_vectors(0, size, [&](auto lanes, int64_t i) {
      Vf total = args.accumulate ? lanes.load(to + i) : Vf{};
      for (int64_t block = 0; block < blocks.count(); ++block) total += lanes.load(from + block * 2 * size + i);
      lanes.store(to + i, total);
    });
  }
}

}  // namespace

void head_norm_forward_cpu(LaunchContext& context, const HeadNormForward& args) {
  if (args.dtype == DType::f32) return run_forward<float>(context, args);
  run_forward<bfloat16>(context, args);
}

void head_norm_backward_cpu(LaunchContext& context, const HeadNormBackward& args) {
  if (args.dtype == DType::f32) return run_backward<float>(context, args);
  run_backward<bfloat16>(context, args);
}

}  // namespace slipstream::kernels::SLIP_ISA

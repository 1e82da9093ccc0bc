// SPDX-License-Identifier: Apache-2.0
// Layer norm on the CPU: a row stays in L1 over its passes. Sums over rows are formed in blocks, and then over the
// blocks in order.

#include "kernels/common/row_blocks.h"
#include "kernels/common/vectors.h"
#include "kernels/layer_norm/layer_norm.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

template <typename T>
inline void forward_row(const LayerNormForward& args, int64_t row) {
  const int64_t width = args.width;
  const T* x = static_cast<const T*>(args.x) + row * width;
  Vf total = {};
  if (args.delta) {
    const T* const delta = static_cast<const T*>(args.delta) + row * width;
    T* const to = static_cast<T*>(args.sum) + row * width;
    for_vectors(0, width, [&](auto lanes, int64_t i) {
      const Vf s = rounded_to(to, lanes.load(x + i) + lanes.load(delta + i));
      lanes.store(to + i, s);
      total += s;
    });
    x = to;
  } else {
    for_vectors(0, width, [&](auto lanes, int64_t i) { total += lanes.load(x + i); });
  }
  const float mean = sum(total) / static_cast<float>(width);
  Vf squares = {};
  for_vectors(0, width, [&](auto lanes, int64_t i) {
    const Vf centred = lanes.keep(lanes.load(x + i) - mean);
    squares += centred * centred;
  });
  const float inv_std = 1.0f / std::sqrt(sum(squares) / static_cast<float>(width) + args.eps);
  const T* const weight = static_cast<const T*>(args.weight);
  const T* const bias = static_cast<const T*>(args.bias);
  T* const y = static_cast<T*>(args.y) + row * width;
  for_vectors(0, width, [&](auto lanes, int64_t i) {
    lanes.store(y + i, (lanes.load(x + i) - mean) * inv_std * lanes.load(weight + i) + lanes.load(bias + i));
  });
  args.mean[row] = mean;
  args.inv_std[row] = inv_std;
}

/// Processes kRows rows at once, so that the sums over rows are read and written once for all of them.
template <int kRows, typename T>
inline void backward_rows(const LayerNormBackward& args, int64_t row, float* dweight, float* dbias) {
  const int64_t width = args.width;
  const T* const dy = static_cast<const T*>(args.dy) + row * width;
  const T* const x = static_cast<const T*>(args.x) + row * width;
  const T* const weight = static_cast<const T*>(args.weight);
  const T* const residual = args.residual ? static_cast<const T*>(args.residual) + row * width : nullptr;
  T* const dx = static_cast<T*>(args.dx) + row * width;
  const float* const mean = args.mean + row;
  const float* const inv_std = args.inv_std + row;
  Vf mean_g[kRows] = {};
  Vf mean_gn[kRows] = {};
  for_vectors(0, width, [&](auto lanes, int64_t i) {
    const Vf w = lanes.load(weight + i);
    Vf sum_weight = lanes.load(dweight + i);
    Vf sum_bias = lanes.load(dbias + i);
    for (int r = 0; r < kRows; ++r) {
      const Vf d = lanes.load(dy + r * width + i);
      const Vf n = (lanes.load(x + r * width + i) - mean[r]) * inv_std[r];  // d is 0 in lanes without elements
      sum_weight += d * n;
      sum_bias += d;
      mean_g[r] += d * w;
      mean_gn[r] += d * w * n;
    }
    lanes.store(dweight + i, sum_weight);
    lanes.store(dbias + i, sum_bias);
  });
  for (int r = 0; r < kRows; ++r) {
    const float c1 = sum(mean_g[r]) / static_cast<float>(width);
    const float c2 = sum(mean_gn[r]) / static_cast<float>(width);
    for_vectors(0, width, [&](auto lanes, int64_t i) {
      const Vf n = (lanes.load(x + r * width + i) - mean[r]) * inv_std[r];
      const Vf g = lanes.load(dy + r * width + i) * lanes.load(weight + i);
      const Vf d = (g - c1 - n * c2) * inv_std[r];
      lanes.store(dx + r * width + i, residual ? d + lanes.load(residual + r * width + i) : d);
    });
  }
}

template <typename T>
void run_forward(LaunchContext& context, const LayerNormForward& args) {
  context.parallel_for(args.rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) forward_row<T>(args, row);
  });
}

template <typename T>
void run_backward(LaunchContext& context, const LayerNormBackward& args) {
  const RowBlocks blocks = {args.rows};
  const int64_t width = args.width;
  context.parallel_for(blocks.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      float* const dweight = args.workspace + block * 2 * width;
      float* const dbias = dweight + width;
      std::memset(dweight, 0, static_cast<size_t>(2 * width) * sizeof(float));
      int64_t row = blocks.begin(block);
      for (; row + 4 <= blocks.end(block); row += 4) backward_rows<4, T>(args, row, dweight, dbias);
      for (; row < blocks.end(block); ++row) backward_rows<1, T>(args, row, dweight, dbias);
    }
  });
  context.parallel_for(width, 64, [&](int64_t begin, int64_t end) {
    for_vectors(begin, end, [&](auto lanes, int64_t i) {
      Vf dweight = args.accumulate ? lanes.load(args.dweight + i) : Vf{};
      Vf dbias = args.accumulate ? lanes.load(args.dbias + i) : Vf{};
      for (int64_t block = 0; block < blocks.count(); ++block) {
        dweight += lanes.load(args.workspace + block * 2 * width + i);
        dbias += lanes.load(args.workspace + block * 2 * width + width + i);
      }
      lanes.store(args.dweight + i, dweight);
      lanes.store(args.dbias + i, dbias);
    });
  });
}

}  // namespace

void layer_norm_forward_cpu(LaunchContext& context, const LayerNormForward& args) {
  if (args.dtype == DType::f32) return run_forward<float>(context, args);
  run_forward<bfloat16>(context, args);
}

void layer_norm_backward_cpu(LaunchContext& context, const LayerNormBackward& args) {
  if (args.dtype == DType::f32) return run_backward<float>(context, args);
  run_backward<bfloat16>(context, args);
}

}  // namespace slipstream::kernels::SLIP_ISA

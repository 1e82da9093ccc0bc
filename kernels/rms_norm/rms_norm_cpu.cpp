// SPDX-License-Identifier: Apache-2.0
// RMS norm on the CPU: a row stays in L1 over its passes. Sums over rows are formed in blocks, and then over the blocks
// in order.

#include "kernels/common/row_blocks.h"
#include "kernels/common/vectors.h"
#include "kernels/rms_norm/rms_norm.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

template <typename T>
inline void forward_row(const RmsNormForward& args, int64_t row) {
  const int64_t width = args.width;
  const T* x = static_cast<const T*>(args.x) + row * width;
  Vf squares = {};
  if (args.delta) {
    const T* const delta = static_cast<const T*>(args.delta) + row * width;
    T* const to = static_cast<T*>(args.sum) + row * width;
    for_vectors(0, width, [&](auto lanes, int64_t i) {
      const Vf s = rounded_to(to, lanes.load(x + i) + lanes.load(delta + i));
      lanes.store(to + i, s);
      squares += s * s;
    });
    x = to;
  } else {
    for_vectors(0, width, [&](auto lanes, int64_t i) {
      const Vf s = lanes.load(x + i);
      squares += s * s;
    });
  }
  const float inv_rms = 1.0f / std::sqrt(sum(squares) / static_cast<float>(width) + args.eps);
  const T* const weight = static_cast<const T*>(args.weight);
  T* const y = static_cast<T*>(args.y) + row * width;
  for_vectors(0, width, [&](auto lanes, int64_t i) {
    lanes.store(y + i, rounded_to(y, lanes.load(x + i) * inv_rms) * lanes.load(weight + i));
  });
  args.inv_rms[row] = inv_rms;
}

/// Processes kRows rows at once, so that the sums over rows are read and written once for all of them.
template <int kRows, typename T>
inline void backward_rows(const RmsNormBackward& args, int64_t row, float* dweight) {
  const int64_t width = args.width;
  const T* const dy = static_cast<const T*>(args.dy) + row * width;
  const T* const x = static_cast<const T*>(args.x) + row * width;
  const T* const weight = static_cast<const T*>(args.weight);
  const T* const residual = args.residual ? static_cast<const T*>(args.residual) + row * width : nullptr;
  T* const dx = static_cast<T*>(args.dx) + row * width;
  const float* const inv_rms = args.inv_rms + row;
  Vf mean_gn[kRows] = {};
  for_vectors(0, width, [&](auto lanes, int64_t i) {
    const Vf w = lanes.load(weight + i);
    Vf sum_weight = lanes.load(dweight + i);
    for (int r = 0; r < kRows; ++r) {
      const Vf dn = lanes.load(dy + r * width + i) * (lanes.load(x + r * width + i) * inv_rms[r]);
      sum_weight += dn;
      mean_gn[r] += dn * w;
    }
    lanes.store(dweight + i, sum_weight);
  });
  for (int r = 0; r < kRows; ++r) {
    const float c = sum(mean_gn[r]) / static_cast<float>(width);
    for_vectors(0, width, [&](auto lanes, int64_t i) {
      const Vf n = lanes.load(x + r * width + i) * inv_rms[r];
      const Vf g = lanes.load(dy + r * width + i) * lanes.load(weight + i);
      const Vf d = (g - n * c) * inv_rms[r];
      lanes.store(dx + r * width + i, residual ? d + lanes.load(residual + r * width + i) : d);
    });
  }
}

template <typename T>
void run_forward(LaunchContext& context, const RmsNormForward& args) {
  context.parallel_for(args.rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) forward_row<T>(args, row);
  });
}

template <typename T>
void run_backward(LaunchContext& context, const RmsNormBackward& args) {
  const RowBlocks blocks = {args.rows};
  const int64_t width = args.width;
  context.parallel_for(blocks.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      float* const dweight = args.workspace + block * width;
      std::memset(dweight, 0, static_cast<size_t>(width) * sizeof(float));
      int64_t row = blocks.begin(block);
      for (; row + 4 <= blocks.end(block); row += 4) backward_rows<4, T>(args, row, dweight);
      for (; row < blocks.end(block); ++row) backward_rows<1, T>(args, row, dweight);
    }
  });
  context.parallel_for(width, 64, [&](int64_t begin, int64_t end) {
    for_vectors(begin, end, [&](auto lanes, int64_t i) {
      Vf dweight = args.accumulate ? lanes.load(args.dweight + i) : Vf{};
      for (int64_t block = 0; block < blocks.count(); ++block)
        dweight += lanes.load(args.workspace + block * width + i);
      lanes.store(args.dweight + i, dweight);
    });
  });
}

}  // namespace

void rms_norm_forward_cpu(LaunchContext& context, const RmsNormForward& args) {
  if (args.dtype == DType::f32) return run_forward<float>(context, args);
  run_forward<bfloat16>(context, args);
}

void rms_norm_backward_cpu(LaunchContext& context, const RmsNormBackward& args) {
  if (args.dtype == DType::f32) return run_backward<float>(context, args);
  run_backward<bfloat16>(context, args);
}

}  // namespace slipstream::kernels::SLIP_ISA

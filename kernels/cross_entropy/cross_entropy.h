// SPDX-License-Identifier: Apache-2.0
#pragma once
// Softmax cross-entropy over a vocabulary, with loss and gradient in one visit of each row.
//
//   p = softmax(logits[row, 0..vocab));  loss_sum = sum over rows of -log p[target]
//   with `backward`: logits[row, j] = gradient_scale (p[j] - [j == target]), and columns vocab..stride become 0
// The probabilities exist only as the gradient, in place of the logits. Maximum and sum are computed together (Milakov
// & Gimelshein 2018, "Online normalizer calculation for softmax"). A row is therefore still in cache (on a GPU: in
// shared memory) when it is overwritten. Rows are computed alone and added in double on kLossLanes interleaved lanes,
// which are then folded in halves. So the bits are the same for any number of threads.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

struct CrossEntropy {
  void* logits = nullptr;            // [rows, stride] of `dtype`; overwritten when `backward`
  const int32_t* targets = nullptr;  // [rows], each in [0, vocab)
  double* loss_sum = nullptr;        // one number; set, not added to
  float* row_losses = nullptr;       // [rows], scratch; afterwards -log p[target] of each row
  int64_t rows = 0, vocab = 0, stride = 0;
  float gradient_scale = 1.0f;  // 1 / tokens of the global batch for a mean
  DType dtype = DType::f32;
  bool backward = true;
};

/// Enqueues on cuda, blocks on cpu. Throws: ShapeError (sizes, dtype, null operand), DataError (a target outside the
/// vocabulary, before anything is written), ResourceError (device).
void cross_entropy(LaunchContext& context, const CrossEntropy& args);

/// The lanes of the sum over rows: row r is added to lane r % kLossLanes.
constexpr int64_t kLossLanes = 1024;
/// Pure. The sum over rows as every device computes it.
double sum_of_losses(const float* row_losses, int64_t rows);

/// Pure. About 8 flops per logit (an exponential counts as one); logits are read once, and written once with
/// `backward`. Pointers may be null.
Cost cross_entropy_cost(const CrossEntropy& args);

/// Run the op on one device, for arguments that are checked and not empty. CUDA enqueues, or throws ResourceError.
/// On the CPU, writes row_losses and, with `backward`, the gradient; the caller adds the rows.
SLIP_DECLARE_PER_ISA(void cross_entropy_cpu(LaunchContext& context, const CrossEntropy& args);)
void cross_entropy_cuda(LaunchContext& context, const CrossEntropy& args);

}  // namespace slipstream::kernels

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Softmax cross-entropy over a vocabulary that several ranks share. Each rank has some columns of the logits, and no
// rank ever has all of them.
//
//   part:   a rank's contribution to a row: {max of its logits, sum of e^(logit - max), its logit of the target or 0};
//           {-inf, 0, 0} without columns
//   merge:  from the parts of all ranks, in rank order, the row's loss; with `backward` the gradient of this rank's
//           logits, in their place
// Between the two the parts travel, with 24 bytes per row and rank. Formulas, types and the order of sums are those of
// cross_entropy.h. The parts are merged by the online normalizer of Milakov & Gimelshein 2018. The bits do not depend
// on the number of threads, but the number of ranks changes the order of additions.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

constexpr int64_t kCrossEntropyPartElems = 3;  // doubles of a row

struct CrossEntropyPart {
  const void* logits = nullptr;      // [rows, stride] of `dtype`
  const int32_t* targets = nullptr;  // [rows], each in [0, whole_vocab)
  double* parts = nullptr;           // [rows, kCrossEntropyPartElems]
  int64_t rows = 0, vocab = 0,
          stride = 0;  // columns 0..vocab are tokens first..first + vocab; columns vocab..stride are padding
  int64_t first = 0, whole_vocab = 0;
  DType dtype = DType::f32;
};

struct CrossEntropyMerge {
  void* logits = nullptr;            // [rows, stride] of `dtype`; overwritten when `backward`, padding with 0
  const int32_t* targets = nullptr;  // [rows]
  const double* parts = nullptr;     // [ranks, rows, kCrossEntropyPartElems]
  double* loss_sum = nullptr;        // one number; set, not added to
  float* row_losses = nullptr;       // [rows]
  int64_t rows = 0, vocab = 0, stride = 0;
  int64_t first = 0, ranks = 1;
  float gradient_scale = 1.0f;
  DType dtype = DType::f32;
  bool backward = true;
};

/// Enqueue on cuda, block on cpu. Throw: ShapeError (sizes, dtype, null operand), DataError (a target outside the
/// vocabulary, before anything is written), ResourceError (device).
void cross_entropy_part(LaunchContext& context, const CrossEntropyPart& args);
void cross_entropy_merge(LaunchContext& context, const CrossEntropyMerge& args);

/// Pure. About 4 flops per logit each (an exponential counts as one). Pointers may be null.
Cost cross_entropy_part_cost(const CrossEntropyPart& args);
Cost cross_entropy_merge_cost(const CrossEntropyMerge& args);

/// Run the op on one device, for arguments that are checked and not empty. CUDA enqueues, or throws ResourceError.
SLIP_DECLARE_PER_ISA(void cross_entropy_part_cpu(LaunchContext& context, const CrossEntropyPart& args);
                     void cross_entropy_merge_cpu(LaunchContext& context, const CrossEntropyMerge& args);)
void cross_entropy_part_cuda(LaunchContext& context, const CrossEntropyPart& args);
void cross_entropy_merge_cuda(LaunchContext& context, const CrossEntropyMerge& args);

}  // namespace slipstream::kernels

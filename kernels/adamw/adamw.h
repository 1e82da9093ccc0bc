// SPDX-License-Identifier: Apache-2.0
#pragma once
// One AdamW step on a contiguous range of parameters, with multipliers of learning rate and weight decay.
//
//   g = clip · gradient;  p -= lr · weight_decay · p
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g²
//   p -= lr · (m · inv_bias1) / (sqrt(v · inv_bias2) + eps)
// Source: Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2, as PyTorch writes it.
//
// A skipped step leaves parameters and moments as they are, and `updated` and `working` receive the parameters.
// All values are float; `working` is the bf16 copy with which the model computes. No two operands may overlap.
// Every element is computed alone, so any split into ranges or threads gives the same bits on one instruction set.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/base/update_multipliers.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

/// Values that change from step to step. They are in device memory, so that a captured or queued step reads the newest
/// ones.
struct AdamwScalars {
  float learning_rate = 0.0f;
  float inv_bias1 = 1.0f;  // 1 / (1 - beta1^t), t counted from 1
  float inv_bias2 = 1.0f;  // 1 / (1 - beta2^t)
  float clip = 1.0f;       // the factor on the gradient; 1: no clipping, below 0: the step is skipped
};

struct Adamw {
  float* parameters = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  const float* gradient = nullptr;
  bfloat16* working = nullptr;  // optional: receives the rounded parameters
  int64_t elems = 0;
  const AdamwScalars* scalars = nullptr;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float eps = 1e-8f;
  float weight_decay = 0.0f;
  float* updated = nullptr;  // optional: receives the parameters, and `params` stays unchanged
  /// Host memory that is read before adamw returns: multipliers of lr and weight_decay, ascending within [0, elems].
  /// Elements before the first span have multipliers of 1.
  const UpdateSpan* spans = nullptr;
  int64_t span_count = 0;
};

/// Enqueues on cuda, blocks on cpu. Throws: ShapeError (negative size, null operand, spans out of order), ResourceError
/// (device).
void adamw(LaunchContext& context, const Adamw& args);

/// Pure. 16 flops and 28 bytes per element, 30 with `working`. Pointers may be null.
Cost adamw_cost(const Adamw& args);

/// Run the op on one device, for arguments that are checked and not empty. CUDA enqueues, or throws ResourceError.
SLIP_DECLARE_PER_ISA(void adamw_cpu(LaunchContext& context, const Adamw& args);)
void adamw_cuda(LaunchContext& context, const Adamw& args);

}  // namespace slipstream::kernels

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Dropout with masks that are functions of counters, with or without the residual sum after it. It is its own backward.

#include <cstdint>

#include "engine/base/context_chunks.h"
#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "kernels/common/dropout_mask.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

/// y = x + m d / (1 - rate), where m is 0 with probability `rate` and 1 otherwise; without x, y = m d / (1 - rate). The
/// gradient of d is m dy / (1 - rate), which is the same function of dy, without x.
///
/// Word f % 4 of Philox4x32-10 with `key` and the counter {f / 4, position, sequence, step} decides about feature f: m
/// is 0 if the word is below rate x 2^32. Row r of the micro-batch is token r % T of its sequence r / T, where T is the
/// number of tokens of a sequence on this rank. `chunks` maps the token to its position in the whole sequence.
///
/// Shapes:  x, d, y [rows, D], the rows from `first_row` of the micro-batch on; samples [> (first_row + rows - 1) / T]
/// Types:   x, d, y f32 or bf16; d / (1 - rate) is rounded to float before the sum, and the sum once to the type
/// Alias:   y may be x, d or both
/// Cost:    2·rows·D flops; (3 or, without x, 2)·rows·D·sizeof(T) bytes; the integer operations of Philox do not count
/// Errors:  ShapeError if a size is negative, rate is not in [0, 1), or an operand other than x is null
/// Source:  Srivastava et al. 2014, "Dropout"; Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"
struct Dropout {
  const void* x = nullptr;  // may be null
  const void* d = nullptr;
  void* y = nullptr;
  const DropoutSample* samples = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
  int64_t first_row = 0;
  ContextChunks chunks = {};
  uint64_t key = 0;
  double rate = 0;
  DType dtype = DType::f32;
};

/// Blocks on cpu, enqueues on cuda. Throws: ShapeError, ResourceError (no kernel for the device).
void dropout(LaunchContext& context, const Dropout& args);

/// Pure. Minimum flops and bytes. `adds`: with x. Pointers may be null.
Cost dropout_cost(const Dropout& args, bool adds);

/// Run the op on one device, for arguments that are checked and not empty. CUDA enqueues, or throws ResourceError.
SLIP_DECLARE_PER_ISA(void dropout_cpu(LaunchContext& context, const Dropout& args);)
void dropout_cuda(LaunchContext& context, const Dropout& args);

}  // namespace slipstream::kernels

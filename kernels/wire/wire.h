// SPDX-License-Identifier: Apache-2.0
#pragma once
// Encoding for the wire: encode before a collective, decode after it, or decode and add what all ranks have sent.
//
//   bf16   round to nearest, ties to even; NaN stays NaN
//   u8     per block of 128: scale = max |x| / 127, q = x / scale rounded to nearest, ties to even, so |q| <= 127. A
//          block whose largest value is below 1e-30 is zero. A block with a NaN or an infinity has the scale NaN: these
//          values decode to NaN, so that they are seen and not averaged away, and the others to 0, because padding must
//          stay 0.
// The error of a value is at most 2^-9 of it (bf16), or 1/254 of the largest of its block (u8).
// With a residual (error feedback), x = from + residual is encoded, and residual = x - decoded remains for the next
// time: a later step receives what rounding removed from this one. A block that is not finite leaves no residual, so
// that later steps are finite again. Every block is computed alone, so any split into ranges or threads gives the same
// bits on one instruction set.
//
// Shapes:  from, residual [parts x elems]; encoded [parts] x encoded_bytes(elems, wire) (engine/base/format.h)
// Types:   values f32 (decode: to f32 or bf16); wire bf16 or kInt8; sums accumulate in f32, in rank order
// Alias:   none
// Cost:    1 flop per value (encode to u8: 4, sum_parts: 2); every operand is moved once, and a residual twice:
//          coding() in engine/plan/passes/wire.cpp
// Errors:  ShapeError if elems is negative or no multiple of 16, the wire is neither bf16 nor kInt8, or an operand is
//          null
// Source:  error feedback: Seide et al. 2014, "1-Bit Stochastic Gradient Descent"; blocks: Dettmers et al. 2022,
//          arXiv:2110.02861

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/base/format.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

/// to = the parts of `from`, encoded for the wire.
struct Encode {
  const float* from = nullptr;
  float* residual = nullptr;  // optional; u8 only
  void* to = nullptr;
  int64_t elems = 0;  // of a part
  int64_t parts = 1;
  Format wire = DType::bf16;
};

/// to = the decoded values of the parts.
struct Decode {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t elems = 0;
  int64_t parts = 1;
  Format wire = DType::bf16;
  DType to_dtype = DType::f32;
};

/// to[i] = sum over parts, in their order, of value i of the part.
struct SumParts {
  const void* from = nullptr;
  float* to = nullptr;
  int64_t elems = 0;
  int64_t parts = 1;
  Format wire = DType::bf16;
};

/// Enqueues on cuda, blocks on cpu. Throws: see Errors; ResourceError (device).
void encode(LaunchContext& context, const Encode& args);
void decode(LaunchContext& context, const Decode& args);
void sum_parts(LaunchContext& context, const SumParts& args);

/// Run the op on one device, for arguments that are checked and not empty. CUDA enqueues, or throws ResourceError.
SLIP_DECLARE_PER_ISA(void encode_cpu(LaunchContext& context, const Encode& args);
                     void decode_cpu(LaunchContext& context, const Decode& args);
                     void sum_parts_cpu(LaunchContext& context, const SumParts& args);)
void encode_cuda(LaunchContext& context, const Encode& args);
void decode_cuda(LaunchContext& context, const Decode& args);
void sum_parts_cuda(LaunchContext& context, const SumParts& args);

}  // namespace slipstream::kernels

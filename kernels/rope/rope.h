// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rotary position embedding in place, on pairs that are half a head apart.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

/// A change of the frequencies for sequences longer than `original_context`, the context of the first training. Waves
/// longer than original_context / low_freq_factor are stretched by `factor`, waves shorter than original_context /
/// high_freq_factor stay, and the frequencies between them are interpolated. Factor 0: no change.
/// Source: Dubey et al. 2024, arXiv:2407.21783; the constants are those of config.json of Llama 3.1.
struct RopeScaling {
  float factor = 0;
  float low_freq_factor = 1;
  float high_freq_factor = 4;
  int64_t original_context = 8192;

  bool operator==(const RopeScaling&) const = default;
};

/// For j < E/2, at position p = t + position_offset with angle a = p * theta^(-2j/E):
/// (x[j], x[j + E/2]) <- (x[j] cos a - x[j + E/2] sin a, x[j + E/2] cos a + x[j] sin a). `inverse` turns by -a, which
/// is the backward pass. B batch, T tokens, H heads, E head_dim.
///
/// Shapes:  the row of token t of sequence b of x is at (b*T + t) * row_stride elements, and head h at + h*E;
///          table [positions >= T + position_offset, E]: cos of E/2 angles, then sin (rope_table)
/// Types:   x f32 or bf16; table and arithmetic f32
/// Alias:   in place
/// Cost:    3·B·T·H·E flops; 2·B·T·H·E·sizeof(T) + 4·T·E bytes
/// Errors:  ShapeError if E is odd, row_stride < H·E, position_offset < 0, or an operand is null
/// Source:  Su et al. 2021, arXiv:2104.09864, eq. 34; the halves are those of Llama's published weights
struct Rope {
  void* x = nullptr;
  int64_t batch = 0;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t row_stride = 0;  // elements
  float theta = 10000.0f;  // the theta of the table; recorded with the work
  int64_t position_offset = 0;
  bool inverse = false;
  DType dtype = DType::f32;
  const float* table = nullptr;
};

/// Blocks on cpu, enqueues on cuda. Throws: ShapeError, ResourceError (no kernel for the device).
void rope(LaunchContext& context, const Rope& args);

/// Pure. Minimum flops and bytes. Pointers may be null.
Cost rope_cost(const Rope& args);

/// Blocks. Fills table [positions, head_dim], computed in double and rounded once. Throws: ShapeError if head_dim is
/// odd, or if the scaling's low_freq_factor is not below its high_freq_factor.
void rope_table(float* table, int64_t positions, int64_t head_dim, float theta, const RopeScaling& scaling = {});

/// Run the op on one device, for arguments that are checked and not empty. CUDA enqueues, or throws ResourceError.
SLIP_DECLARE_PER_ISA(void rope_cpu(LaunchContext& context, const Rope& args);)
void rope_cuda(LaunchContext& context, const Rope& args);

}  // namespace slipstream::kernels

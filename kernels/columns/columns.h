// SPDX-License-Identifier: Apache-2.0
#pragma once
// Copies columns of wider rows to separate rows, and adds such rows back: the parts of a packed activation that travel
// in a ring.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

/// to[r, c] = from[r * from_stride + c] for c < width.
///
/// Shapes:  from: rows from_stride elements apart, to [rows, width]
/// Types:   f32 or bf16, copied unchanged
/// Alias:   none
/// Cost:    0 flops; 2·rows·width·sizeof(T) bytes
/// Errors:  ShapeError if from_stride < width, or an operand is null
/// Source:  elementary; used by Liu et al. 2023, arXiv:2310.01889 (keys and values travel without queries)
struct ColumnsTake {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
  int64_t from_stride = 0;  // elements
  DType dtype = DType::f32;
};

/// to[r * to_stride + c] = a[r, c] + b[r, c] for c < width, rounded to dtype once.
///
/// Shapes:  a, b [rows, width]; to: rows to_stride elements apart
/// Types:   a, b float, to f32 or bf16
/// Alias:   none
/// Cost:    rows·width flops; rows·width·(8 + sizeof(T)) bytes
/// Errors:  ShapeError if to_stride < width, or an operand is null
/// Source:  elementary; used by Liu et al. 2023, arXiv:2310.01889 (keys and values travel without queries)
struct ColumnsSum {
  const float* a = nullptr;
  const float* b = nullptr;
  void* to = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
  int64_t to_stride = 0;  // elements
  DType dtype = DType::f32;
};

/// Blocks on cpu, enqueues on cuda. Throws: ShapeError, ResourceError (no kernel for the device).
void columns_take(LaunchContext& context, const ColumnsTake& args);
void columns_sum(LaunchContext& context, const ColumnsSum& args);

/// Pure. The minimum of flops and bytes. Pointers may be null.
Cost columns_take_cost(const ColumnsTake& args);
Cost columns_sum_cost(const ColumnsSum& args);

/// Run the op on one device, for arguments that are checked and not empty. CUDA enqueues, or throws ResourceError.
SLIP_DECLARE_PER_ISA(void columns_take_cpu(LaunchContext& context, const ColumnsTake& args);
                     void columns_sum_cpu(LaunchContext& context, const ColumnsSum& args);)
void columns_take_cuda(LaunchContext& context, const ColumnsTake& args);
void columns_sum_cuda(LaunchContext& context, const ColumnsSum& args);

}  // namespace slipstream::kernels

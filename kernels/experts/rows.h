// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rows of tokens in the order of their experts: which row comes where, copies to this order, and sums back.
//
// T is the number of tokens, E the number of experts, K = top_k the choices of a token, R = max_rows the bound on the
// number of rows, and D the width. A choice is a number t·K + j: the j-th expert of token t.

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

/// Sorts the choices of experts first to first + E - 1 by (expert, token, j). rows[i] = the choice at position i;
/// places[t, j] = the position of the choice t·K + j; offsets[e] = the position of the first choice of expert
/// first + e, and offsets[E] = the number of all.
///
///   A choice of another expert has no row: its place is -1. rows after offsets[E] stay untouched. The result is the
///   same on every device and for every number of threads.
///
/// Shapes:  chosen, places [T, K]; offsets [E + 1]; rows [offsets[E]], which is at most T·K
/// Types:   i32
/// Alias:   none
/// Cost:    0 flops; 12·T·K + 4·(E + 1) bytes
/// Errors:  ShapeError if T < 0, K < 1, E < 1, first < 0, first + E > 2^31 - 1, T·K >= 2^31, or an operand is null (if
///          T = 0, all but offsets may be)
/// Source:  a stable counting sort; Knuth, The Art of Computer Programming, volume 3, section 5.2, algorithm D
struct ArrangeRows {
  const int32_t* chosen = nullptr;
  int32_t* offsets = nullptr;
  int32_t* rows = nullptr;
  int32_t* places = nullptr;
  int64_t tokens = 0, experts = 0, top_k = 0;
  int64_t first = 0;
};

/// to[i] = from[rows[i] / K], and row_weights[i] = weights[rows[i]], for every i below *count.
///
///   `count` is read on the device when the op runs; at most R rows count. Rows of `to` and row_weights after it stay
///   untouched.
///
/// Shapes:  from [T, D]; rows [R]; to [R, D]; weights [T·K]; row_weights [R]
/// Types:   from, to f32 or bf16, copied unchanged; rows, count i32; weights, row_weights f32
/// Alias:   none
/// Cost:    0 flops; 2·R·D·sizeof(T) + 4·R bytes, and 8·R more with weights
/// Errors:  ShapeError if R < 0, D < 1, K < 1, only one of weights and row_weights is null, or another operand but
///          count is null
/// Source:  elementary
struct TakeRows {
  const void* from = nullptr;
  const int32_t* rows = nullptr;
  const int32_t* count = nullptr;  // optional; null: max_rows
  void* to = nullptr;
  int64_t top_k = 1, max_rows = 0, width = 0;
  DType dtype = DType::f32;
  const float* weights = nullptr;  // optional, with row_weights
  float* row_weights = nullptr;
};

/// to[t] = add[t] + sum_j from[places[t, j]], and weights[t, j] = row_weights[places[t, j]].
///
///   Sums are formed in the order add, j = 0, 1, ... and rounded once. A negative place adds nothing, and its weight
///   is 0. At most R = max_rows places are not negative, or T·K if max_rows is 0; the cost alone depends on it.
///
/// Shapes:  from: rows of D elements; places, weights [T, K]; add, to [T, D]; row_weights: a number per row of from
/// Types:   from, add, to f32 or bf16; sums f32; places i32; row_weights, weights f32
/// Alias:   to may be add
/// Cost:    R·D flops; (R + T)·D·sizeof(T) + 4·T·K bytes, T·D·sizeof(T) more with add, and
///          4·(R + T·K) more with weights
/// Errors:  ShapeError if T < 0, D < 1, K < 1, R < 0, only one of weights and row_weights is null, or another operand
///          but add is null
/// Source:  elementary
struct ReturnRows {
  const void* from = nullptr;
  const int32_t* places = nullptr;
  const void* add = nullptr;  // optional
  void* to = nullptr;
  int64_t tokens = 0, top_k = 1, width = 0;
  DType dtype = DType::f32;
  const float* row_weights = nullptr;  // optional, with weights
  float* weights = nullptr;
  int64_t max_rows = 0;  // 0: T·K
};

/// Enqueues on cuda, blocks on cpu. Throws: ShapeError, ResourceError (no kernel for the device).
void arrange_rows(LaunchContext& context, const ArrangeRows& args);
void take_rows(LaunchContext& context, const TakeRows& args);
void return_rows(LaunchContext& context, const ReturnRows& args);

/// Pure. Pointers may be null, but optional operands count if they are not.
Cost arrange_rows_cost(const ArrangeRows& args);
Cost take_rows_cost(const TakeRows& args);
Cost return_rows_cost(const ReturnRows& args);

/// Run the op on one device, for arguments that are checked. CUDA enqueues, or throws ResourceError.
SLIP_DECLARE_PER_ISA(void arrange_rows_cpu(LaunchContext& context, const ArrangeRows& args);
                     void take_rows_cpu(LaunchContext& context, const TakeRows& args);
                     void return_rows_cpu(LaunchContext& context, const ReturnRows& args);)
void arrange_rows_cuda(LaunchContext& context, const ArrangeRows& args);
void take_rows_cuda(LaunchContext& context, const TakeRows& args);
void return_rows_cuda(LaunchContext& context, const ReturnRows& args);

}  // namespace slipstream::kernels

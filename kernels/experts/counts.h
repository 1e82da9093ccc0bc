// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counts of rows that ranks send to experts, and the places where the rows of all ranks arrive.

#include <cstdint>

#include "engine/device/work.h"

namespace slipstream::kernels {

/// counts[e] = offsets[e + 1] - offsets[e].
///
/// Shapes:  offsets [E + 1]; counts [E]
/// Types:   i32
/// Alias:   none
/// Cost:    0 flops; 8·E bytes
/// Errors:  ShapeError if E < 1 or an operand is null
/// Source:  elementary
struct CountRows {
  const int32_t* offsets = nullptr;
  int32_t* counts = nullptr;
  int64_t experts = 0;
};

/// The first rows of the experts of rank r among `ranks`, which has G of the ranks x G experts, in memory that begins
/// with the rank's row `begin` and holds `bound` rows:
/// offsets[j] = clamp(sum over j' < j and all ranks s of counts[s, r G + j'] - begin, 0, bound) for j from 0 to G.
///
///   A negative count has no rows. Sums are formed in 64 bits.
///
/// Shapes:  counts [ranks, ranks·G]; offsets [G + 1]
/// Types:   i32
/// Alias:   none
/// Cost:    0 flops; 4·(ranks·G + G + 1) bytes
/// Errors:  ShapeError if a size is below 1, rank is not below ranks, begin < 0, bound < 0 or above 2^31 - 1, or an
///          operand is null
/// Source:  elementary
struct OwnRows {
  const int32_t* counts = nullptr;
  int32_t* offsets = nullptr;
  int64_t ranks = 0, rank = 0, experts = 0;  // experts: G
  int64_t bound = 0, begin = 0;
};

/// late[0] = the number of rows of rank r if any of them is at or after row `bound` of its expert's rank, otherwise 0.
/// The rows of a rank are in the order (expert, rank that sent them, position).
///
///   A negative count has no rows. Sums are formed in 64 bits.
///
/// Shapes:  counts [ranks, ranks·G]; late [1]
/// Types:   i32
/// Alias:   none
/// Cost:    0 flops; 4·ranks·ranks·G + 4 bytes
/// Errors:  ShapeError as OwnRows
/// Source:  elementary
struct LateRows {
  const int32_t* counts = nullptr;
  int32_t* late = nullptr;
  int64_t ranks = 0, rank = 0, experts = 0;  // experts: G
  int64_t bound = 0;
};

/// Enqueues on cuda, blocks on cpu. Throws: ShapeError, ResourceError (no kernel for the device).
void count_rows(LaunchContext& context, const CountRows& args);
void own_rows(LaunchContext& context, const OwnRows& args);
void late_rows(LaunchContext& context, const LateRows& args);

/// Pure. Pointers may be null.
Cost count_rows_cost(const CountRows& args);
Cost own_rows_cost(const OwnRows& args);
Cost late_rows_cost(const LateRows& args);

/// Run the op on one device, for arguments that are checked. CUDA enqueues, or throws ResourceError.
void count_rows_cpu(const CountRows& args);
void own_rows_cpu(const OwnRows& args);
void late_rows_cpu(const LateRows& args);
void count_rows_cuda(LaunchContext& context, const CountRows& args);
void own_rows_cuda(LaunchContext& context, const OwnRows& args);
void late_rows_cuda(LaunchContext& context, const LateRows& args);

}  // namespace slipstream::kernels

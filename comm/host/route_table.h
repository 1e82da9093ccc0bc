// SPDX-License-Identifier: Apache-2.0
#pragma once
// The places of the rows of one all_to_all_v, which a rank computes from the counts in memory when the work runs.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace slipstream::comm {

/// The rows of one source for one expert.
struct RoutePiece {
  int64_t source_row = 0;  // where they begin in the memory of the source
  int64_t owner_row = 0;   // where they begin in the memory of the expert's owner
  int64_t rows = 0;        // that travel; the bounds may cut off the beginning and the end
};

/// The pieces of one rank, as a source and as an owner of experts. Its memory is allocated once, for the largest route.
class RouteTable {
 public:
  /// Allocates the memory for `route`. Later calls keep the memory of earlier ones.
  void reserve(const Route& route, int size);
  /// Computes the pieces. `counts`: int32 [size][size * experts]. The pieces depend on a copy of each count alone, so
  /// that a count that changes meanwhile moves no byte outside the operands.
  /// Throws: CommError if a count is negative, or if a source has more rows than its memory.
  void read(const Route& route, int rank, int size, const int32_t* counts, const std::string& what);

  /// The rows of this rank for expert `expert` of rank `owner`.
  const RoutePiece& sent(int owner, int expert) const { return sent_[static_cast<size_t>(owner * experts_ + expert)]; }
  /// The rows of rank `source` for expert `expert` of this rank.
  const RoutePiece& held(int source, int expert) const {
    return held_[static_cast<size_t>(source * experts_ + expert)];
  }
  int experts() const { return experts_; }

 private:
  int experts_ = 0;
  std::vector<RoutePiece> sent_, held_;
  std::vector<int64_t> fill_;  // the rows of each owner so far
};

/// What leaves this rank for other ranks and what arrives from them, in one work.
struct RoutedBytes {
  int64_t sent = 0, received = 0;
};
/// Pure. `table` has read the counts.
RoutedBytes routed_bytes(const RouteTable& table, const Route& route, DType dtype, int rank, int size);

}  // namespace slipstream::comm

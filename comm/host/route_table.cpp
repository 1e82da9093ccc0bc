// SPDX-License-Identifier: Apache-2.0
// One pass over the counts, which visits every count once.

#include "comm/host/route_table.h"

#include <algorithm>

#include "engine/base/check.h"

namespace slipstream::comm {

void RouteTable::reserve(const Route& route, int size) {
  const auto pieces = static_cast<size_t>(size) * static_cast<size_t>(route.experts);
  sent_.resize(std::max(sent_.size(), pieces));
  held_.resize(std::max(held_.size(), pieces));
  fill_.resize(std::max(fill_.size(), pieces));
}

void RouteTable::read(const Route& route, int rank, int size, const int32_t* counts, const std::string& what) {
  experts_ = route.experts;
  const int all = size * experts_;
  // The owner keeps its rows in the order (expert, source). The sum over the sources so far is in fill_, by expert; a
  // second pass adds the experts before.
  std::fill_n(fill_.begin(), all, 0);
  for (int source = 0; source < size; ++source) {
    int64_t source_row = 0;
    for (int e = 0; e < all; ++e) {
      const int64_t count = counts[static_cast<int64_t>(source) * all + e];
      if (count < 0)
        throw CommError(
            "[comm] {}: the count of rows that rank {} sends to expert {} is {}. Counts are at least 0; look for the "
            "work that writes them.",
            what, source, e, count);
      const RoutePiece piece{.source_row = source_row, .owner_row = fill_[static_cast<size_t>(e)], .rows = count};
      if (source == rank) sent_[static_cast<size_t>(e)] = piece;
      if (e / experts_ == rank) held_[static_cast<size_t>(source * experts_ + e % experts_)] = piece;
      fill_[static_cast<size_t>(e)] += count;
      source_row += count;
    }
    if (source_row > route.source_rows)
      throw CommError(
          "[comm] {}: the counts of rank {} add up to {} rows, but a source has {}. Look for the work that writes the "
          "counts.",
          what, source, source_row, route.source_rows);
  }
  const auto place = [&](RoutePiece& piece, int64_t expert_row) {
    // The owner's memory begins with its row `begin_rows`.
    const int64_t first = piece.owner_row + expert_row - route.begin_rows, begin = std::max<int64_t>(first, 0);
    piece.rows = std::max<int64_t>(std::min(first + piece.rows, route.bound_rows) - begin, 0);
    piece.source_row += begin - first;
    piece.owner_row = begin;
  };
  for (int owner = 0; owner < size; ++owner) {
    int64_t expert_row = 0;
    for (int j = 0; j < experts_; ++j) {
      place(sent_[static_cast<size_t>(owner * experts_ + j)], expert_row);
      for (int source = 0; owner == rank && source < size; ++source)
        place(held_[static_cast<size_t>(source * experts_ + j)], expert_row);
      expert_row += fill_[static_cast<size_t>(owner * experts_ + j)];
    }
  }
}

RoutedBytes routed_bytes(const RouteTable& table, const Route& route, DType dtype, int rank, int size) {
  int64_t to_owners = 0, to_this = 0;
  for (int peer = 0; peer < size; ++peer)
    for (int j = 0; peer != rank && j < route.experts; ++j) {
      to_owners += table.sent(peer, j).rows;
      to_this += table.held(peer, j).rows;
    }
  const int64_t row_bytes = bytes_of(route.row_elems, dtype);
  return route.reverse ? RoutedBytes{to_this * row_bytes, to_owners * row_bytes}
                       : RoutedBytes{to_owners * row_bytes, to_this * row_bytes};
}

}  // namespace slipstream::comm

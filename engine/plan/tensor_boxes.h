// SPDX-License-Identifier: Apache-2.0
#pragma once
// A range of a tensor as one rank holds it, expressed as boxes of the whole tensor.

#include <cstdint>
#include <vector>

#include "engine/plan/model_spec.h"

namespace slipstream {

/// The elements [held, held + rows x columns) of the held part, which are the rows [row, row + rows) and columns
/// [column, column + columns) of the whole tensor. A tensor of one dimension has one column.
struct TensorBox {
  int64_t held = 0;
  int64_t row = 0, column = 0, rows = 0, columns = 0;
};

/// Pure. Returns the boxes of the elements [begin, begin + count) of the held part, in order. Padding belongs to no
/// box.
std::vector<TensorBox> boxes_of(const NamedTensor& tensor, int64_t begin, int64_t count);

}  // namespace slipstream

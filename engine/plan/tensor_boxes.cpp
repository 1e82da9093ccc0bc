// SPDX-License-Identifier: Apache-2.0
// Joins the runs of NamedTensor::for_runs to boxes.

#include "engine/plan/tensor_boxes.h"

#include <algorithm>

namespace slipstream {

std::vector<TensorBox> boxes_of(const NamedTensor& tensor, int64_t begin, int64_t count) {
  std::vector<TensorBox> boxes;
  const std::vector<int64_t> shape = tensor.whole_shape();
  int64_t whole_columns = 1;
  for (size_t d = 1; d < shape.size(); ++d) whole_columns *= shape[d];
  const auto add = [&](int64_t held, int64_t row, int64_t column, int64_t rows, int64_t columns) {
    if (!boxes.empty()) {
      TensorBox& last = boxes.back();
      const bool below = last.row + last.rows == row && last.column == column && last.columns == columns;
      if (below && last.held + last.rows * last.columns == held) {
        last.rows += rows;
        return;
      }
    }
    boxes.push_back({held, row, column, rows, columns});
  };
  tensor.for_runs(tensor.split.index, begin, count, [&](int64_t held, int64_t whole, int64_t elems) {
    while (elems > 0) {
      const int64_t row = whole / whole_columns, column = whole % whole_columns;
      const bool whole_rows = column == 0 && elems >= whole_columns;
      const int64_t rows = whole_rows ? elems / whole_columns : 1,
                    columns = whole_rows ? whole_columns : std::min(elems, whole_columns - column);
      add(held, row, column, rows, columns);
      held += rows * columns, whole += rows * columns, elems -= rows * columns;
    }
  });
  return boxes;
}

}  // namespace slipstream

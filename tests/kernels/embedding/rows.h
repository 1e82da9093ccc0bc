// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared by the tests of the embedding: ids, tables as matrices of doubles, and shapes.

#include <random>
#include <string>
#include <vector>

#include "kernels/embedding/embedding.h"
#include "tests/kernels/common/backend.h"
#include "tests/kernels/common/cases.h"
#include "tests/reference/embedding.h"

namespace slipstream::test {

using reference::Table;

inline std::vector<int32_t> random_ids(int64_t count, int64_t vocab, const std::string& name) {
  const Philox philox(kSeed, name);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>(philox.below(static_cast<uint64_t>(i), static_cast<uint64_t>(vocab))));
  return ids;
}

template <typename T>
Table table_of(const std::vector<T>& values, int64_t width) {
  Table table(static_cast<Eigen::Index>(values.size()) / width, width);
  for (Eigen::Index i = 0; i < table.size(); ++i) table.data()[i] = as_double(values[static_cast<size_t>(i)]);
  return table;
}

template <typename T>
double error_of(const std::vector<T>& got, const Table& want) {
  return relative_error(got, [&](int64_t i) { return want.data()[i]; });
}

struct EmbeddingShape {
  int64_t batch, tokens, width, vocab;
};
// Around a pack of columns, a chunk of rows (256) and a tile of columns (1024 of float, 2048 of bf16).
inline const std::vector<EmbeddingShape> kShapes = {
    {1, 1, 1, 1}, {3, 7, 5, 11}, {2, 16, 64, 31}, {1, 257, 9, 4}, {2, 150, 33, 1000}, {1, 3, 1030, 2}, {1, 3, 2056, 2}};

inline std::vector<int32_t> ids_of(int64_t count, int64_t vocab, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(generator() % static_cast<uint32_t>(vocab)));
  return ids;
}

}  // namespace slipstream::test

// SPDX-License-Identifier: Apache-2.0
// Passes named tensors on in pieces, transposed if the format requires it.

#include "trainer/runtime/weights/weights.h"

#include <algorithm>

#include "engine/base/units.h"
#include "trainer/runtime/rank/rank.h"

namespace slipstream::runtime {
namespace {

constexpr int64_t kPieceElems = kMiB / static_cast<int64_t>(sizeof(float));

/// Writes a [rows, columns] matrix as [columns, rows], row by row. Only matrices of blocks are stored transposed, and
/// never a vocabulary.
void write_turned(const ReadWeights& read, size_t p, size_t t, const NamedTensor& named, DType dtype,
                  const checkpoint::TensorSink& sink) {
  const std::vector<int64_t> shape = named.whole_shape();
  const auto rows = static_cast<size_t>(shape[0]), columns = static_cast<size_t>(shape[1]);
  std::vector<float> held(rows * columns), row(rows);
  read(p, t, 0, held);
  for (size_t c = 0; c < columns; ++c) {
    for (size_t r = 0; r < rows; ++r) row[r] = held[r * columns + c];
    pass_on(row, dtype, sink);
  }
}

}  // namespace

void pass_on(std::span<const float> values, DType dtype, const checkpoint::TensorSink& sink) {
  if (dtype == DType::f32) return sink(values.data(), static_cast<int64_t>(values.size_bytes()));
  std::vector<bfloat16> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(), [](float value) { return bfloat16(value); });
  sink(rounded.data(), static_cast<int64_t>(2 * rounded.size()));
}

void for_pieces(const Job& job, const ReadWeights& read, size_t parameter, size_t tensor,
                const std::function<void(std::span<const float>)>& take) {
  const int64_t elems = job.model.parameters[parameter].tensor(tensor).whole_elems();
  std::vector<float> piece(static_cast<size_t>(std::min(elems, kPieceElems)));
  for (int64_t begin = 0; begin < elems; begin += kPieceElems) {
    const std::span<float> part = std::span(piece).first(static_cast<size_t>(std::min(kPieceElems, elems - begin)));
    read(parameter, tensor, begin, part);
    take(part);
  }
}

std::vector<checkpoint::TensorToSave> tensors_to_save(const std::vector<std::shared_ptr<const Job>>& stages,
                                                      const std::vector<ReadWeights>& reads, DType dtype) {
  std::vector<checkpoint::TensorToSave> tensors;
  for (const auto& [name, at] : tensors_of(stages)) {
    const std::shared_ptr<const Job> job = stages[at.stage];
    const NamedTensor& named = job->model.parameters[at.parameter].tensor(at.tensor);
    std::vector<int64_t> shape = named.whole_shape();
    if (named.transposed_on_disk) std::swap(shape[0], shape[1]);
    tensors.push_back({.name = name,
                       .dtype = dtype,
                       .shape = shape,
                       .write = [job, read = reads[at.stage], p = at.parameter, t = at.tensor, &named,
                                 dtype](const checkpoint::TensorSink& sink) {
                         if (named.transposed_on_disk) return write_turned(read, p, t, named, dtype, sink);
                         for_pieces(*job, read, p, t,
                                    [&](std::span<const float> piece) { pass_on(piece, dtype, sink); });
                       }});
  }
  return tensors;
}

}  // namespace slipstream::runtime

// SPDX-License-Identifier: Apache-2.0
// Cuts the flat order into named tensors, turned where the format wants them turned.

#include "cli/weights.h"

#include "cli/rank.h"

namespace slipstream::cli {

std::vector<checkpoint::TensorToSave> tensors_to_save(const Job& job, std::span<const float> flat) {
  std::vector<checkpoint::TensorToSave> tensors;
  for (size_t p = 0; p < job.model.parameters.size(); ++p)
    for (size_t t = 0; t < job.model.parameters[p].tensors.size(); ++t) {
      const NamedTensor& named = job.model.parameters[p].tensors[t];
      std::vector<int64_t> shape = named.shape;
      if (named.transposed_on_disk) std::swap(shape[0], shape[1]);
      tensors.push_back({.name = named.name, .dtype = DType::f32, .shape = shape,
                         .write = [&job, flat, p, t, &named](const checkpoint::TensorSink& sink) {
                           const std::span<const float> held = tensor_of(job, flat, p, t);
                           std::vector<float> values(held.begin(), held.end());
                           if (named.transposed_on_disk) {
                             const auto rows = static_cast<size_t>(named.shape[0]), columns = static_cast<size_t>(named.shape[1]);
                             for (size_t r = 0; r < rows; ++r)
                               for (size_t c = 0; c < columns; ++c) values[c * rows + r] = held[r * columns + c];
                           }
                           sink(values.data(), static_cast<int64_t>(values.size() * sizeof(float)));
                         }});
    }
  return tensors;
}

}  // namespace slipstream::cli

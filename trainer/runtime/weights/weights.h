// SPDX-License-Identifier: Apache-2.0
#pragma once
// The weights of a job as named tensors in the format of other programs. They are read piece by piece to avoid a second
// copy of the model.

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/checkpoint/safetensors.h"
#include "engine/plan/job.h"

namespace slipstream::runtime {

/// Reads the elements [begin, begin + out.size()) of the whole tensor `tensor` of parameter `parameter`.
using ReadWeights = std::function<void(size_t parameter, size_t tensor, int64_t begin, std::span<float> out)>;

/// Calls take(values) with consecutive pieces of a named tensor, of at most 1 MiB.
void for_pieces(const Job& job, const ReadWeights& read, size_t parameter, size_t tensor,
                const std::function<void(std::span<const float>)>& take);

/// Gives the values to `sink`, as float32 or rounded to the nearest bfloat16.
void pass_on(std::span<const float> values, DType dtype, const checkpoint::TensorSink& sink);

/// Returns every named tensor of the model in `dtype`. The `reads` of its stage supply the values during the write.
/// Pure.
std::vector<checkpoint::TensorToSave> tensors_to_save(const std::vector<std::shared_ptr<const Job>>& stages,
                                                      const std::vector<ReadWeights>& reads, DType dtype = DType::f32);

}  // namespace slipstream::runtime

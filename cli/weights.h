// SPDX-License-Identifier: Apache-2.0
#pragma once
// The weights of a job as other programs hold them: named tensors of a safetensors file.

#include <span>
#include <vector>

#include "engine/checkpoint/safetensors.h"
#include "engine/plan/job.h"

namespace slipstream::cli {

/// Every named tensor of the model, taken from the flat order when it is written. Borrows both. Pure.
std::vector<checkpoint::TensorToSave> tensors_to_save(const Job& job, std::span<const float> flat);

}  // namespace slipstream::cli

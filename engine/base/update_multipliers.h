// SPDX-License-Identifier: Apache-2.0
#pragma once
// Multipliers of the learning rate and of the weight decay, selected by the name of a tensor.

#include <cstdint>
#include <optional>
#include <string>

namespace slipstream {

/// One row of optimizer.multipliers.
struct UpdateMultipliers {
  std::string pattern;  // a pattern of the tensor's Hugging Face name, with * and ?
  double learning_rate = 1;
  std::optional<double> weight_decay;  // if absent: 1 for matrices, 0 for norms and biases
};

/// The multipliers of the elements from `begin` up to the next span.
struct UpdateSpan {
  int64_t begin = 0;
  float learning_rate = 1;
  float weight_decay = 1;
  bool operator==(const UpdateSpan&) const = default;
};

}  // namespace slipstream

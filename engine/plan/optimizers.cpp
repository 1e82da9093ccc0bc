// SPDX-License-Identifier: Apache-2.0
// The table of optimizers.

#include <cmath>

#include "engine/plan/optimizer.h"

namespace slipstream {
namespace {

// kernels/adamw: AdamwScalars and adamw_cost() have the same numbers.
OptimizerSpec adamw() {
  return {
      .name = OptimizerName::adamw,
      .states = {{"momentum"}, {"variance"}},
      .scalars = {"learning_rate", "inv_bias1", "inv_bias2", "clip"},
      .clip_scalar = 3,
      .cost =
          [](const UpdateShape& shape) {
            return Cost{16 * shape.elems, (shape.rounds ? 30 : 28) * shape.elems};
          },
      .write_scalars =
          [](const UpdateOptions& update, double learning_rate, int64_t step, std::span<float> scalars) {
            const auto inverse_bias = [t = static_cast<double>(step)](double beta) {
              return static_cast<float>(1 / (1 - std::pow(beta, t)));
            };
            scalars[0] = static_cast<float>(learning_rate);
            scalars[1] = inverse_bias(update.beta1);
            scalars[2] = inverse_bias(update.beta2);
            scalars[3] = 1;
          },
  };
}

}  // namespace

int64_t OptimizerSpec::state_bytes_per_elem() const {
  int64_t bytes = 0;
  for (const OptimizerState& state : states) bytes += size_of(state.dtype);
  return bytes;
}

const std::vector<OptimizerSpec>& optimizers() {
  static const std::vector<OptimizerSpec> all{adamw()};
  return all;
}

}  // namespace slipstream

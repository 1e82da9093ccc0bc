// SPDX-License-Identifier: Apache-2.0
// The table of optimizers.

#include <algorithm>
#include <cmath>

#include "engine/base/units.h"
#include "engine/plan/optimizer.h"

namespace slipstream {
namespace {

bool casts_gram(const UpdateShape& shape) { return shape.rows > shape.cols && shape.product_dtype != DType::f32; }

// The numbers are those of AdamwScalars and adamw_cost() in kernels/adamw.
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

// The numbers are those of MuonScalars, muon_cost() and muon_workspace_bytes() in kernels/muon.
OptimizerSpec muon() {
  return {
      .name = OptimizerName::muon,
      .states = {{"momentum"}},
      .scalars = {"learning_rate", "decay", "clip"},
      .clip_scalar = 2,
      .granularity = Granularity::matrix,
      .cost =
          [](const UpdateShape& shape) {
            constexpr int64_t kSteps = 5;
            const int64_t n = shape.elems, k = std::min(shape.rows, shape.cols), size = size_of(shape.product_dtype);
            return Cost{11 * n + kSteps * (4 * k * n + 2 * k * k * k + 3 * k * k),
                        (32 + 2 * size + (shape.rounds ? 2 : 0)) * n +
                            kSteps * (size * (3 * n + 7 * k * k) + (casts_gram(shape) ? 8 * k * k : 0))};
          },
      .workspace_bytes =
          [](const UpdateShape& shape) {
            const int64_t k = std::min(shape.rows, shape.cols);
            const auto area = [](int64_t elems, DType dtype) { return round_up(bytes_of(elems, dtype), 256); };
            return area(1, DType::f64) + area(shape.elems, DType::f32) + area(shape.elems, shape.product_dtype) +
                   2 * area(k * k, shape.product_dtype) + (casts_gram(shape) ? area(k * k, DType::f32) : 0);
          },
      .write_scalars =
          [](const UpdateOptions& update, double learning_rate, int64_t, std::span<float> scalars) {
            scalars[0] = static_cast<float>(learning_rate);
            scalars[1] = static_cast<float>(1 - learning_rate * update.weight_decay);
            scalars[2] = 1;
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
  static const std::vector<OptimizerSpec> all{adamw(), muon()};
  return all;
}

}  // namespace slipstream

// SPDX-License-Identifier: Apache-2.0
#pragma once
// An optimizer as data: what it keeps of every parameter, what the host hands it in every step, what it costs and when
// it may start.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/device/work.h"

namespace slipstream {

/// What the update rules read from the run file.
struct UpdateOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  float max_norm = 1.0f;  // of the gradient, when the plan clips
};

/// One element for every element of the parameters, sharded as they are; zero before the first step.
struct OptimizerState {
  std::string name;  // of its buffer
  DType dtype = DType::f32;
};

enum class UpdateStart : uint8_t {
  at_gradient,  // when its gradient is complete
  after_clip    // and the clip factor is known, where the plan clips
};

struct OptimizerSpec {
  std::string name;  // optimizer.name in a run file; its tasks have it too
  std::vector<OptimizerState> states;
  /// Floats that change from step to step, in the order of the struct that the kernel reads.
  std::vector<std::string> scalars;
  size_t clip_scalar = 0;  // index of the factor on the gradient, 1 when not clipping; a plan that clips writes it
  UpdateStart start = UpdateStart::after_clip;
  /// Of an update of `elems` elements; `rounds`: it writes weights as bf16 too. Pure.
  Cost (*cost)(int64_t elems, bool rounds) = nullptr;
  /// Fills in the scalars of `step`, counted from 1. Pure.
  void (*write_scalars)(const UpdateOptions& update, double learning_rate, int64_t step,
                        std::span<float> scalars) = nullptr;

  int64_t scalars_bytes() const { return static_cast<int64_t>(scalars.size() * sizeof(float)); }
  int64_t state_bytes_per_elem() const;
};

/// All optimizers, in the order of OptimizerName (engine/config/config.h).
const std::vector<OptimizerSpec>& optimizers();

}  // namespace slipstream

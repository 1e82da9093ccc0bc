// SPDX-License-Identifier: Apache-2.0
#pragma once
// An optimizer as data: what it keeps for every parameter, what the host passes to it in every step, what it costs, and
// when it may start.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/base/update_options.h"
#include "engine/device/work.h"

namespace slipstream {

/// One element for every element of the parameters, sharded as they are, and zero before the first step.
struct OptimizerState {
  std::string name;  // the name of its buffer
  DType dtype = DType::f32;
};

enum class UpdateStart : uint8_t {
  at_gradient,  // when the gradient is complete
  after_clip    // when, in addition, the clip factor is known, if the plan clips
};

/// The smallest unit that one rank must update alone.
enum class Granularity : uint8_t {
  element,  // a shard is any range of a bucket
  matrix    // a shard holds whole parameters, which ranks share by cost
};

/// The operands of one call.
struct UpdateShape {
  int64_t elems = 0;
  int64_t rows = 0, cols = 0;        // the size of a matrix
  bool rounds = false;               // the update also writes weights as bf16
  DType product_dtype = DType::f32;  // for products of matrices
};

struct OptimizerSpec {
  OptimizerName name = OptimizerName::adamw;  // the tasks of the optimizer have this name too
  std::vector<OptimizerState> states;
  /// The floats that change from step to step, in the order of the struct that the kernel reads.
  std::vector<std::string> scalars;
  /// The index of the factor on the gradient, which is 1 without clipping; a plan that clips writes it.
  size_t clip_scalar = 0;
  UpdateStart start = UpdateStart::after_clip;
  Granularity granularity = Granularity::element;
  Cost (*cost)(const UpdateShape& shape) = nullptr;                // Pure
  int64_t (*workspace_bytes)(const UpdateShape& shape) = nullptr;  // the scratch memory of a call; null: none. Pure
  /// Fills in the scalars of `step`, counted from 1. Pure.
  void (*write_scalars)(const UpdateOptions& update, double learning_rate, int64_t step,
                        std::span<float> scalars) = nullptr;

  int64_t state_bytes_per_elem() const;
};

/// Returns all optimizers, in the order of OptimizerName.
const std::vector<OptimizerSpec>& optimizers();

}  // namespace slipstream

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text generation by weights of a folder.

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/device/device.h"
#include "models/generation.h"
#include "trainer/runtime/weights/model_folder.h"

namespace slipstream::runtime {

class World;

struct GenerationOptions {
  int sequences = 1;         // texts at once
  int64_t capacity = 0;      // tokens of a text that count
  DType dtype = DType::f32;  // of matrices, keys and values in memory
  kernels::SamplingOptions sampling = {};
  uint64_t seed = 1;
  int64_t vocab = 0;                // tokens that may be drawn: the first ones
  std::vector<int32_t> holes = {};  // and of these not
};

/// Blocks: reads the weights. The ranks of `world`, if there are several, share the model, and call this together.
/// Throws: CheckpointError, ConfigError, ResourceError.
models::Generation load_generation(const ModelFolder& weights, const GenerationOptions& asked,
                                   std::unique_ptr<Device> device, World& world);

}  // namespace slipstream::runtime

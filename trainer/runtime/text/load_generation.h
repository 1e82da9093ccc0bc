// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text generation with the weights of a folder.

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
  int sequences = 1;         // the texts at once
  int64_t capacity = 0;      // the tokens of a text that count
  DType dtype = DType::f32;  // for matrices, keys and values in memory
  kernels::SamplingOptions sampling = {};
  uint64_t seed = 1;
  int64_t vocab = 0;                // the tokens that may be drawn: the first ones
  std::vector<int32_t> holes = {};  // those of them that are never drawn
};

/// Blocks while it reads the weights. If `world` has several ranks, they share the model and call this together.
/// Throws: CheckpointError, ConfigError, ResourceError.
models::Generation load_generation(const ModelFolder& weights, const GenerationOptions& asked,
                                   std::unique_ptr<Device> device, World& world);

}  // namespace slipstream::runtime

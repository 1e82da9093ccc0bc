// SPDX-License-Identifier: Apache-2.0
#pragma once
// The logits of the token after a text, by weights of a folder.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/device/device.h"
#include "models/generation.h"
#include "runtime/model_folder.h"

namespace slipstream::runtime {

class World;

class NextLogits {
 public:
  virtual ~NextLogits() = default;
  /// Blocks. Gives `take` the logits after texts[which[i]] for every index i. Each text is that of the last call and at
  /// least one token more. Longer texts than the capacity count with their last tokens. Throws: what `take` throws.
  virtual void after(std::span<const int> which, std::span<const std::vector<int32_t>> texts,
                     const models::TakeLogits& take) = 0;
  /// Bytes of memory that the next token of these texts reads at least; 0: not known.
  virtual int64_t bytes_read(std::span<const int> /*which*/) const { return 0; }
  /// Blocks. Bytes per second at which all threads together read the weights once and do nothing else; 0: not known.
  virtual double read_rate() const { return 0; }
};

struct CachedLogits {
  int sequences = 1;         // texts at once
  int64_t capacity = 0;      // tokens of a text that count
  DType dtype = DType::f32;  // of matrices in memory
};

/// Blocks. Keeps keys and values, so that a token costs one pass over the weights, on the given device. The ranks of
/// `world`, if there are several, share the model. Throws: CheckpointError, ConfigError, ResourceError.
std::unique_ptr<NextLogits> cached_logits(const ModelFolder& weights, const CachedLogits& asked,
                                          std::unique_ptr<Device> device, World& world);

}  // namespace slipstream::runtime

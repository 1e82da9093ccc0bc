// SPDX-License-Identifier: Apache-2.0
#pragma once
// The logits of the token after a text, by weights of a folder.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/dtype.h"
#include "runtime/model_folder.h"

namespace slipstream::runtime {

class World;

class NextLogits {
 public:
  virtual ~NextLogits() = default;
  /// Blocks. The logits after texts[i] for every i of `which`, in this order. Each text is that of the last call and at
  /// least one token more. Longer texts than the capacity count with their last tokens.
  virtual std::vector<std::vector<float>> after(std::span<const int> which,
                                                std::span<const std::vector<int32_t>> texts) = 0;
  /// Bytes of memory that the next token of these texts reads at least; 0: not known.
  virtual int64_t bytes_read(std::span<const int> /*which*/) const { return 0; }
  /// Blocks. Bytes per second at which all threads together read the weights and do nothing else; 0: not known.
  virtual double read_rate() const { return 0; }
};

/// Blocks. On the CPU: keeps keys and values, so that a token costs one pass over the weights. The ranks of `world`, if
/// there are several, share the model. Throws: CheckpointError, ConfigError, ResourceError.
std::unique_ptr<NextLogits> cached_logits(const ModelFolder& weights, int sequences, int64_t capacity, DType dtype,
                                          World& world);

/// Blocks. On a GPU, with the forward pass of training: a token costs a pass over all earlier ones. Throws: as above.
std::unique_ptr<NextLogits> recomputed_logits(const ModelFolder& weights, int64_t capacity, const std::string& device);

}  // namespace slipstream::runtime

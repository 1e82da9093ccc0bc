// SPDX-License-Identifier: Apache-2.0
#pragma once
// The forward pass of text generation: keys and values of earlier tokens are kept, so that a token costs one pass over
// the weights.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/device/device.h"
#include "engine/plan/model_spec.h"
#include "models/model.h"

namespace slipstream::models {

struct GenerationSetup {
  DType dtype = DType::f32;  // of matrices in memory; all arithmetic is f32
  int sequences = 1;         // that may be open at once
  int64_t capacity = 0;      // tokens of a sequence; at most the model's context
  int threads = 1;
  std::unique_ptr<Device> device = {};  // that has the weights and runs the pass; null: the CPU
  /// Elements [begin, begin + out.size()) of the part of a tensor that this rank holds.
  std::function<void(const NamedTensor& tensor, int64_t begin, std::span<float> out)> read;
  /// With ModelOptions::tensor > 1: sums over the ranks that share the model, in place; and gathers their parts. Both
  /// use memory of the host.
  std::function<void(std::span<float>)> sum = {};
  std::function<void(std::span<const float> part, std::span<float> all)> gather = {};
};

/// The logits after sequence number `index` of a call, valid until it returns; it may change them. Called once for each
/// sequence, on several threads at once.
using TakeLogits = std::function<void(size_t index, std::span<float> logits)>;

/// Owns weights and caches. Not safe to use from several threads.
class Generation {
 public:
  /// Blocks: reads all weights. Throws: ConfigError as build_model(); ResourceError without memory; what `read` throws.
  Generation(const ModelOptions& options, GenerationSetup setup);
  ~Generation();
  Generation(Generation&&) noexcept;

  /// Blocks. Begins the sequence anew with 1 to capacity tokens. Throws: what `take` throws.
  void begin(int sequence, std::span<const int32_t> ids, const TakeLogits& take);
  /// Blocks. Adds one token to each of several sequences. A sequence's logits do not depend on the others. Each must
  /// have room: tokens() < capacity. Throws: what `take` throws.
  void step(std::span<const int> sequences, std::span<const int32_t> ids, const TakeLogits& take);

  int64_t tokens(int sequence) const;
  /// Bytes of weights that a step reads, and of keys and values that it reads for one sequence.
  int64_t weight_bytes() const;
  int64_t cache_bytes(int sequence) const;
  /// Blocks. Seconds of one pass of all threads that only reads the weights of a step; 0 on a GPU: not measured.
  double read_seconds() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slipstream::models

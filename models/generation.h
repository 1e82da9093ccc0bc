// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text generation: the forward pass of the newest tokens and the choice of the next ones. It keeps the keys and values
// of earlier tokens, so that a token costs one pass over the weights.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/device/device.h"
#include "engine/plan/model_spec.h"
#include "kernels/sample/sample.h"
#include "models/model.h"

namespace slipstream::models {

struct GenerationSetup {
  DType dtype = DType::f32;  // for matrices, keys and values in memory; all arithmetic is f32
  int sequences = 1;         // the sequences that may be open at once
  int64_t capacity = 0;      // the tokens of a sequence; at most the model's context
  int threads = 1;
  std::unique_ptr<Device> device = {};  // the device that has the weights and runs the passes; null: the CPU
  bool records = true;                  // on a GPU, steps become graphs
  kernels::SamplingOptions sampling = {};
  uint64_t seed = 1;                // the seed of the sampling
  int64_t vocab = 0;                // only the first `vocab` tokens of the model's vocabulary may be drawn; 0: all
  std::vector<int32_t> holes = {};  // those of them that are never drawn
  /// Reads the elements [begin, begin + out.size()) of the part of a tensor that this rank holds.
  std::function<void(const NamedTensor& tensor, int64_t begin, std::span<float> out)> read;
  /// With ModelOptions::tensor > 1, these sum over the ranks that share the model, in place, and gather their parts.
  /// Both use memory of the host.
  std::function<void(std::span<float>)> sum = {};
  std::function<void(std::span<const float> part, std::span<float> all)> gather = {};
};

/// Generates texts. Owns weights and caches. Only one thread may use it.
///
/// A pass, begin() or step(), draws a token for each of its sequences. On the CPU it blocks. On a GPU it is enqueued,
/// and what it needs from the previous pass, the new tokens and their positions, stays on the GPU. So the host may
/// issue a step before it takes the tokens of the previous one.
class Generation {
 public:
  /// Blocks while it reads all weights. Throws: ConfigError as build_model(); ResourceError without memory; what `read`
  /// throws.
  Generation(const ModelOptions& options, GenerationSetup setup);
  ~Generation();
  Generation(Generation&&) noexcept;

  /// Restarts a sequence with a text of at least one token, of which the last `capacity` ones count, and draws the next
  /// token by the random number `draws` of text number `text_number`. The tokens of all earlier passes must have been
  /// taken.
  void begin(int sequence, std::span<const int32_t> text, uint32_t text_number = 0, uint32_t draws = 0);
  /// Adds to each of these sequences the token that was last drawn for it, and draws the next one. A sequence's tokens
  /// do not depend on the others. Each sequence must have room.
  void step(std::span<const int> sequences);
  /// Returns true if step() can add a token to the sequence.
  bool has_room(int sequence) const;
  /// Blocks. Returns the tokens that the earliest pass not yet taken has drawn, in the order of its sequences. They are
  /// valid until the next pass, and kernels::kNotFinite where logits were not finite.
  std::span<const int32_t> take();
  /// Returns the number of passes that may be issued while one has not been taken: 1 on a GPU of its own, otherwise 0.
  int passes_ahead() const;

  /// Blocks. Returns the logits of a row of the latest pass, if the temperature is 0.
  std::vector<float> logits(int64_t row);
  /// Blocks. Makes the next step add this token instead of the drawn one. All passes must have been taken.
  void replace_drawn(int sequence, int32_t id);

  /// Returns the tokens of a sequence whose keys and values are kept.
  int64_t tokens(int sequence) const;
  /// Return the bytes of weights that a step reads, and those of keys and values that it reads for one sequence.
  int64_t weight_bytes() const;
  int64_t cache_bytes(int sequence) const;
  /// Blocks. Returns the seconds of one pass of all threads that only reads the weights of a step, or 0 on a GPU, where
  /// it is not measured.
  double read_seconds() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slipstream::models

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text generation: the forward pass of the newest tokens, with kept keys and values of the earlier ones, so that a
// token costs one pass over the weights, and the choice of the next tokens.

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
  DType dtype = DType::f32;  // of matrices, keys and values in memory; all arithmetic is f32
  int sequences = 1;         // that may be open at once
  int64_t capacity = 0;      // tokens of a sequence; at most the model's context
  int threads = 1;
  std::unique_ptr<Device> device = {};  // that has the weights and runs the passes; null: the CPU
  bool records = true;                  // on a GPU, steps become graphs
  kernels::SamplingOptions sampling = {};
  uint64_t seed = 1;                // of the sampling
  int64_t vocab = 0;                // the first tokens of the model's vocabulary may be drawn; 0: all
  std::vector<int32_t> holes = {};  // of these, tokens that are never drawn
  /// Elements [begin, begin + out.size()) of the part of a tensor that this rank holds.
  std::function<void(const NamedTensor& tensor, int64_t begin, std::span<float> out)> read;
  /// With ModelOptions::tensor > 1: sums over the ranks that share the model, in place; and gathers their parts. Both
  /// use memory of the host.
  std::function<void(std::span<float>)> sum = {};
  std::function<void(std::span<const float> part, std::span<float> all)> gather = {};
};

/// Owns weights and caches. Not safe to use from several threads.
///
/// A pass, begin() or step(), draws a token for each of its sequences. On the CPU it blocks; on a GPU it is enqueued,
/// and what it needs to know of the pass before, the new tokens and their positions, stays on the GPU. So the host may
/// issue a step before it takes the tokens of the one before.
class Generation {
 public:
  /// Blocks: reads all weights. Throws: ConfigError as build_model(); ResourceError without memory; what `read` throws.
  Generation(const ModelOptions& options, GenerationSetup setup);
  ~Generation();
  Generation(Generation&&) noexcept;

  /// Begins a sequence anew with a text of at least one token, of which the last capacity ones count, and draws the
  /// next one by the random number `draws` of text number `text_number`. The tokens of all earlier passes have been
  /// taken.
  void begin(int sequence, std::span<const int32_t> text, uint32_t text_number = 0, uint32_t draws = 0);
  /// Adds to each of these sequences the token that was drawn for it last, and draws the next. A sequence's tokens do
  /// not depend on the others. Each must have room.
  void step(std::span<const int> sequences);
  /// Can step() add a token to the sequence?
  bool has_room(int sequence) const;
  /// Blocks. The tokens that the earliest pass has drawn which has not been taken, in the order of its sequences, valid
  /// until the next pass; kernels::kNotFinite where logits were not finite.
  std::span<const int32_t> take();
  /// Passes that may be issued while one has not been taken: 1 on a GPU of its own, otherwise 0.
  int passes_ahead() const;

  /// Blocks. The logits of a row of the latest pass, if the temperature is 0.
  std::vector<float> logits(int64_t row);
  /// Blocks. The next step adds this token instead of the drawn one. All passes have been taken.
  void replace_drawn(int sequence, int32_t id);

  /// Tokens of a sequence with kept keys and values.
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

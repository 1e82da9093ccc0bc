// SPDX-License-Identifier: Apache-2.0
#pragma once
// The texts of generation in the memory of the device: their newest tokens, the choice of the next tokens, and the
// transfer of these to the host.

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "kernels/sample/sample.h"
#include "models/common/generation_device.h"

namespace slipstream::models {

/// The rows of a pass, one for each of several texts. The pointers belong to the device.
struct TextRows {
  int64_t count = 0;
  const int32_t* sequences = nullptr;  // the sequences of the texts
  const int32_t* ids = nullptr;        // their newest tokens
  const int32_t* places = nullptr;     // the positions of these tokens
};

struct TokenChoiceOptions {
  int64_t sequences = 0;  // the number of texts at once
  int64_t vocab = 0;      // the tokens that may be drawn: the first ones of the vocabulary
  std::vector<int32_t> holes = {};
  kernels::SamplingOptions sampling = {};
  uint64_t seed = 1;
};

/// Chooses the next tokens. Borrows the device.
class TokenChoice {
 public:
  TokenChoice(GenerationDevice& device, const TokenChoiceOptions& options);

  /// Blocks. Restarts the text of a sequence, whose last token is at position `token`. No pass may be in flight.
  void start(int sequence, std::span<const int32_t> text, int64_t token, uint32_t text_number, uint32_t draws);
  /// Blocks if the sequences differ from those of the last call. Returns the rows of a step, which update() fills in
  /// each pass.
  TextRows rows_of(std::span<const int> sequences);
  /// Returns the row of one sequence, whose id and position the caller knows.
  TextRows row_of(int sequence);
  /// Blocks. Replaces the newest token of a text. No pass may be in flight.
  void replace(int sequence, int32_t id);

  // --- during a pass
  // Both enqueue. update() fills in the newest tokens of the rows. choose() draws the next ones and overwrites the
  // logits.
  void update(const TextRows& rows);
  void choose(const TextRows& rows, float* logits, int64_t stride, size_t turn);

  // --- passes in flight: they are issued, and their tokens are not yet taken
  // Returns the turn of a new pass.
  size_t issue(int64_t rows);
  int64_t on_their_way() const { return std::ssize(passes_); }
  /// Blocks. Returns the tokens of the earliest pass.
  std::span<const int32_t> take();

 private:
  kernels::TextState* states() const { return reinterpret_cast<kernels::TextState*>(states_->data()); }
  int32_t* drawn_in(size_t turn) const;
  std::vector<uint32_t> set_of(std::span<const int32_t> tokens) const;

  GenerationDevice& device_;
  TokenChoiceOptions options_;
  int64_t words_;  // the words of a set of tokens
  uint64_t key_;
  std::unique_ptr<Allocation> states_, seen_, holes_;  // for all texts; seen_ and holes_ are sets of tokens
  std::unique_ptr<Allocation> every_, stepping_, ids_, places_, chosen_;
  std::unique_ptr<Allocation> drawn_;  // [turns, sequences], in host memory
  std::vector<int> stepping_now_;      // the contents of stepping_
  struct Pass {
    size_t turn;
    int64_t rows;
  };
  std::deque<Pass> passes_;
  size_t issued_ = 0;
};

}  // namespace slipstream::models

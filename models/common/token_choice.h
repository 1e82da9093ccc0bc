// SPDX-License-Identifier: Apache-2.0
#pragma once
// The texts of generation in memory of its device: their newest tokens, the choice of the next ones, and the way of
// these to the host.

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "kernels/sample/sample.h"
#include "models/common/generation_device.h"

namespace slipstream::models {

/// Rows of a pass: one for each of several texts. Pointers are the device's.
struct TextRows {
  int64_t count = 0;
  const int32_t* sequences = nullptr;  // of the texts
  const int32_t* ids = nullptr;        // their newest tokens
  const int32_t* places = nullptr;     // and their positions
};

struct TokenChoiceOptions {
  int64_t sequences = 0;  // texts at once
  int64_t vocab = 0;      // tokens that may be drawn: the first ones
  std::vector<int32_t> holes = {};
  kernels::SamplingOptions sampling = {};
  uint64_t seed = 1;
};

/// Borrows: the device.
class TokenChoice {
 public:
  TokenChoice(GenerationDevice& device, const TokenChoiceOptions& options);

  /// Blocks. The text of a sequence begins anew; its last token is at position `token`. No pass is on its way.
  void start(int sequence, std::span<const int32_t> text, int64_t token, uint32_t text_number, uint32_t draws);
  /// Blocks if the sequences are not those of the last call. The rows of a step, which update() fills in each pass.
  TextRows rows_of(std::span<const int> sequences);
  /// The row of one sequence, whose id and place the caller knows.
  TextRows row_of(int sequence);
  /// Blocks. The newest token of a text becomes this one. No pass is on its way.
  void replace(int sequence, int32_t id);

  // --- in a pass
  /// Enqueue. The newest tokens of the rows; and the choice of the next ones, which overwrites the logits.
  void update(const TextRows& rows);
  void choose(const TextRows& rows, float* logits, int64_t stride, size_t turn);

  // --- passes on their way: issued, and their tokens not yet taken
  /// Returns the turn of a new pass.
  size_t issue(int64_t rows);
  int64_t on_their_way() const { return std::ssize(passes_); }
  /// Blocks. The tokens of the earliest pass.
  std::span<const int32_t> take();

 private:
  kernels::TextState* states() const { return reinterpret_cast<kernels::TextState*>(states_->data()); }
  int32_t* drawn_in(size_t turn) const;
  std::vector<uint32_t> set_of(std::span<const int32_t> tokens) const;

  GenerationDevice& device_;
  TokenChoiceOptions options_;
  int64_t words_;  // of a set of tokens
  uint64_t key_;
  std::unique_ptr<Allocation> states_, seen_, holes_;  // of all texts; sets of tokens
  std::unique_ptr<Allocation> every_, stepping_, ids_, places_, chosen_;
  std::unique_ptr<Allocation> drawn_;  // [turns, sequences], of the host
  std::vector<int> stepping_now_;      // what stepping_ has
  struct Pass {
    size_t turn;
    int64_t rows;
  };
  std::deque<Pass> passes_;
  size_t issued_ = 0;
};

}  // namespace slipstream::models

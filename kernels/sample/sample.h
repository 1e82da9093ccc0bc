// SPDX-License-Identifier: Apache-2.0
#pragma once
// The choice of the next token from logits, with the same result on every device.
//
// Letters: R rows, V tokens of the vocabulary.

#include <cstdint>

#include "engine/device/work.h"
#include "kernels/common/isa.h"

namespace slipstream::kernels {

struct SamplingOptions {
  double temperature = 0.8;       // 0: always the most likely token
  int top_k = 0;                  // sample among the most likely tokens; 0: all
  double top_p = 1;               // among the fewest tokens whose probabilities sum to this; 1: all
  double min_p = 0;               // among tokens at least this times as likely as the most likely; 0: all
  double repetition_penalty = 1;  // divides positive logits of earlier tokens, multiplies negative ones; 1: none
};

/// A text that grows: what its next step needs, in memory of the device, so that the host need not know it.
struct TextState {
  int32_t id = 0;      // the newest token; kNotFinite if its logits had no finite value
  int32_t token = 0;   // the position of this token
  uint32_t draws = 0;  // tokens drawn so far, and
  uint32_t text = 0;   // number of the text: together the counter of the random numbers
};
/// Replaces a token whose logits were not all finite.
constexpr int32_t kNotFinite = -1;

/// The words of a set of tokens: bit i % 32 of word i / 32 is token i.
constexpr int64_t token_set_words(int64_t vocab) { return (vocab + 31) / 32; }

/// Draws the next token of each row. Row r belongs to text[sequences[r]], which then describes the drawn token.
///
///   The penalty comes first: the logits of the tokens in `seen` are divided or multiplied in double. Holes have no
///   probability. With temperature 0 the choice is the first of the highest logits. Otherwise
///     e[i] = floor(2^25 · (top - logit[i]) · f), f = float(log2(e) / temperature); one float product and one
///     w[i] = floor(2^40 · 2^-(e[i] / 2^25)) to a relative error of 2^-29; 0 from 41 halvings on     difference
///   and all that follows is exact, because it uses whole numbers: sums do not depend on their order, so that every
///   device and number of threads chooses the same tokens.
///   top_k:  tokens whose e is at most the k-th lowest stay.
///   top_p:  of these, the fewest with the lowest e stay whose w sum to at least top_p · sum w; of equal e the first.
///   min_p:  of these, tokens with w >= min_p · 2^40 stay.
///   draw:   the first token with sum(w[0..i]) > u · sum w / 2^64, u = the bits of Philox(key) at text · 2^32 + draws.
///
/// Shapes:  logits [R, stride], of which V count; holes [token_set_words(V)]; seen [texts, token_set_words(V)];
///          sequences [R]; text [texts]; chosen [R]
/// Types:   logits f32
/// Alias:   overwrites the logits: those of holes and of seen tokens, and all of them unless the temperature is 0
/// Cost:    4·R·V bytes for each of its passes: 2 with temperature 0, otherwise 5; 11 more with top_k, 12 with top_p
/// Errors:  ShapeError if an option is out of range, V exceeds stride or 2^23, or an operand but holes is null (seen
///          only with a penalty)
/// Source:  top_p: Holtzman, Buys, Du, Forbes, Choi 2020, "The curious case of neural text degeneration"
struct Sample {
  float* logits = nullptr;
  int64_t rows = 0, vocab = 0, stride = 0;
  SamplingOptions options;
  uint64_t key = 0;                 // of the random numbers
  const uint32_t* holes = nullptr;  // optional: tokens that are never chosen
  uint32_t* seen = nullptr;         // the tokens of each text; the chosen one is added
  const int32_t* sequences = nullptr;
  TextState* text = nullptr;
  int32_t* chosen = nullptr;
};

/// ids[r] and places[r] = the newest token of text[sequences[r]] and its position, which are the rows of the next step.
struct NextRows {
  const int32_t* sequences = nullptr;
  const TextState* text = nullptr;
  int64_t rows = 0;
  int32_t* ids = nullptr;
  int32_t* places = nullptr;
};

/// Enqueue on cuda, block on cpu. Throw: ShapeError, ResourceError (no kernel for this device).
void sample(LaunchContext& context, const Sample& args);
void next_rows(LaunchContext& context, const NextRows& args);

/// Run the op on one device, for arguments that are checked and not empty. CUDA enqueues, or throws ResourceError.
SLIP_DECLARE_PER_ISA(void sample_cpu(LaunchContext& context, const Sample& args);
                     /// The choice in one row by 64 random bits. Advances nothing.
                     int32_t choose_cpu(const Sample& args, int64_t row, uint64_t random);)
void sample_cuda(LaunchContext& context, const Sample& args);
void next_rows_cuda(LaunchContext& context, const NextRows& args);

/// Pure. `args` in the units of sample_rule.h.
struct SamplingNumbers;
SamplingNumbers numbers_of(const Sample& args);

}  // namespace slipstream::kernels

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tokens of a training step and of an evaluation, as pure arithmetic.
//
// T = sequence_length, N = tokens of the split, G = global_batch_size, B = micro_batch_size. A window is T + 1 tokens:
// inputs are the first T, targets the last T, and neighbours share one token.
//
// Training. An epoch has W = max(1, floor(N / T) - 1) windows; window w of epoch e begins at offset(e) + w T, with
// offset(e) uniform below min(T, N - W T), so that every window of every epoch lies inside the split. The windows of an
// epoch are visited in the order of a permutation of (seed, e). Row i of step k (steps count from 1) is the global
// sample g = (k - 1) G + i: place g mod W of epoch g div W; an epoch may end in the middle of a step. Of R data ranks,
// rank r takes the contiguous rows r G/R .. (r + 1) G/R - 1, and its micro-batch m takes B of them, from its row m B
// on. The rows of a step therefore never depend on R or B.
//
// In a mixture, the sources follow one another, each with N_s tokens. Global sample g is sample i of source s by
// engine/data/datasets/mixture.h; its window is that of sample i when training on source s alone with a seed of (seed,
// s).
//
// Evaluation. There are V = floor((N - 1) / T) windows, which begin at 0, T, 2T, .. The last (N - 1) mod T tokens are
// never targets. The loss of the split is the mean over the V T targets; rows that pad a batch have no weight.

#include <cstdint>
#include <span>
#include <vector>

#include "engine/data/datasets/mixture.h"

namespace slipstream::data {

/// A permutation of 0 .. size - 1 that is computed and not stored: an alternating Feistel network on the smallest power
/// of two >= `size`, repeated until the result is below `size`. This takes fewer than 2 repetitions on average. Source:
/// Black & Rogaway 2002, "Ciphers with arbitrary finite domains", section 4 (cycle walking).
class Permutation {
 public:
  /// `size` is at least 1.
  Permutation(uint64_t size, uint64_t seed, uint64_t index);
  /// Pure. `position` < size.
  uint64_t operator()(uint64_t position) const;

 private:
  uint64_t once(uint64_t value) const;

  uint64_t size_;
  uint64_t round_seed_;
  int low_bits_;
  int high_bits_;
};

struct SamplerOptions {
  int64_t sequence_length = 0;    // T, tokens
  int64_t micro_batch_size = 0;   // B, rows per data rank
  int64_t global_batch_size = 0;  // G, rows per step
  uint64_t seed = 0;
};

/// The rows begin .. begin + count - 1, numbered through the whole training.
struct SampleRange {
  uint64_t begin = 0;
  int64_t count = 0;
};

class TrainSampler {
 public:
  /// `token_count` is N. Throws: DataError if N < T + 1.
  TrainSampler(int64_t token_count, const SamplerOptions& options);
  /// `token_counts` has N_s of each of the mixture's sources. Throws: DataError if one of them is less than T + 1.
  TrainSampler(std::span<const int64_t> token_counts, Mixture mixture, const SamplerOptions& options);

  /// Returns the first token of the window of global sample `sample`. Pure.
  int64_t begin_of(uint64_t sample) const;
  /// Returns offset(epoch) of a source. Pure.
  int64_t offset_of(uint64_t epoch, int64_t source = 0) const;
  /// Returns the number of micro-batches of a step on each of `data_ranks` ranks. Pure. Throws: ConfigError if
  /// data_ranks x B does not divide G.
  int64_t micro_batches(int64_t data_ranks) const;
  /// Returns the B samples of one micro-batch. The union over the data ranks and micro-batches of a step is the same G
  /// samples, in the same order, for every layout. Pure.
  SampleRange samples_of(int64_t step, int64_t data_rank, int64_t data_ranks, int64_t micro_batch) const;
  const SamplerOptions& options() const { return options_; }

 private:
  struct Part {
    int64_t begin = 0;  // the tokens of the sources before it
    int64_t windows = 0;
    int64_t offset_bound = 0;
    uint64_t seed = 0;
  };
  SamplerOptions options_;
  Mixture mixture_;
  std::vector<Part> parts_;
};

/// The rows of one evaluation micro-batch on one data rank: the windows begin .. begin + valid_rows - 1. The other rows
/// of the batch hold real tokens (the split's first window) but have no weight.
struct EvalRows {
  int64_t begin = 0;
  int64_t valid_rows = 0;  // 0 to B
};

class EvalSampler {
 public:
  /// Evaluates `eval_batches` batches of G windows, or the whole split if `eval_batches` is 0 or exceeds the split.
  /// Throws: DataError if N < T + 1.
  EvalSampler(int64_t token_count, const SamplerOptions& options, int64_t eval_batches);

  /// Returns the number of evaluated windows, which is the same for every layout. Pure.
  int64_t windows() const { return windows_; }
  /// Returns the number of evaluated targets: the divisor of the mean loss. Pure.
  int64_t target_count() const { return windows_ * options_.sequence_length; }
  /// Returns the number of rounds in which each rank evaluates one micro-batch. It is the same on all ranks. Pure.
  int64_t rounds(int64_t data_ranks) const;
  /// Pure. `round` is in [0, rounds(data_ranks)).
  EvalRows rows_of(int64_t round, int64_t data_rank, int64_t data_ranks) const;
  int64_t begin_of(int64_t window) const { return window * options_.sequence_length; }
  const SamplerOptions& options() const { return options_; }

 private:
  SamplerOptions options_;
  int64_t windows_;
};

}  // namespace slipstream::data

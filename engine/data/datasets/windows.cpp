// SPDX-License-Identifier: Apache-2.0
// Computes the windows of training and evaluation; a Feistel permutation orders the training windows.

#include "engine/data/datasets/windows.h"

#include <algorithm>
#include <bit>

#include "engine/base/check.h"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"  // the 128-bit product of Philox::below
#include "engine/base/philox.h"
#pragma GCC diagnostic pop
#include "engine/base/units.h"

namespace slipstream::data {

namespace {

constexpr int kRounds = 8;

void check_options(int64_t token_count, const SamplerOptions& options, const char* split) {
  SLIP_ASSERT(options.sequence_length >= 1);
  SLIP_ASSERT(options.micro_batch_size >= 1);
  SLIP_ASSERT(options.global_batch_size >= 1);
  if (token_count < options.sequence_length + 1)
    throw DataError(
        "[data] the {} split has {} tokens, need at least train.sequence_length + 1 = {}. Use more text or a "
        "shorter sequence_length.",
        split, token_count, options.sequence_length + 1);
}

constexpr uint64_t mask_of(int bits) { return (uint64_t{1} << bits) - 1; }

}  // namespace

Permutation::Permutation(uint64_t size, uint64_t seed, uint64_t index)
    : size_(size), round_seed_(Philox(seed, "data.permutation").bits(index)) {
  SLIP_ASSERT(size >= 1 && size <= uint64_t{1} << 62);
  const int bits = std::bit_width(size - 1);
  low_bits_ = (bits + 1) / 2;
  high_bits_ = bits - low_bits_;
}

uint64_t Permutation::once(uint64_t value) const {
  // Each half-round xors a function of one half into the other half, which is invertible for every function.
  const Philox random(round_seed_, "data.permutation.round");
  uint64_t low = value & mask_of(low_bits_);
  uint64_t high = value >> low_bits_;
  for (uint64_t round = 0; round < kRounds; round += 2) {
    low ^= random.bits(round << 40 | high) & mask_of(low_bits_);
    high ^= random.bits((round + 1) << 40 | low) & mask_of(high_bits_);
  }
  return high << low_bits_ | low;
}

uint64_t Permutation::operator()(uint64_t position) const {
  SLIP_ASSERT(position < size_);
  if (size_ == 1) return 0;
  // The network permutes the power of two, so that its cycle through a point inside always returns inside.
  do position = once(position);
  while (position >= size_);
  return position;
}

TrainSampler::TrainSampler(int64_t token_count, const SamplerOptions& options)
    : TrainSampler(std::span(&token_count, 1), {}, options) {}

TrainSampler::TrainSampler(std::span<const int64_t> token_counts, Mixture mixture, const SamplerOptions& options)
    : options_(options), mixture_(std::move(mixture)) {
  const int64_t length = options.sequence_length;
  const Philox seeds(options.seed, "data.source");
  int64_t begin = 0;
  for (const int64_t count : token_counts) {
    check_options(count, options, "training");
    Part part{.begin = begin, .windows = std::max<int64_t>(1, count / length - 1)};
    part.offset_bound = std::min(length, count - part.windows * length);
    part.seed = token_counts.size() == 1 ? options.seed : seeds.bits(parts_.size());
    parts_.push_back(part);
    begin += count;
  }
}

int64_t TrainSampler::offset_of(uint64_t epoch, int64_t source) const {
  const Part& part = parts_.at(static_cast<size_t>(source));
  return static_cast<int64_t>(Philox(part.seed, "data.offset").below(epoch, static_cast<uint64_t>(part.offset_bound)));
}

int64_t TrainSampler::begin_of(uint64_t sample) const {
  const auto [source, index] = mixture_.place_of(sample);
  const Part& part = parts_.at(static_cast<size_t>(source));
  const auto windows = static_cast<uint64_t>(part.windows);
  const uint64_t epoch = index / windows;
  const uint64_t window = Permutation(windows, part.seed, epoch)(index % windows);
  return part.begin + offset_of(epoch, source) + static_cast<int64_t>(window) * options_.sequence_length;
}

int64_t TrainSampler::micro_batches(int64_t data_ranks) const {
  const int64_t rows = data_ranks * options_.micro_batch_size;
  SLIP_ASSERT(data_ranks >= 1);
  if (options_.global_batch_size % rows != 0)
    throw ConfigError(
        "[config] train.global_batch_size = {} is not a multiple of micro_batch_size {} x {} data ranks = {}. "
        "Change one of them, for instance global_batch_size = {}.",
        options_.global_batch_size, options_.micro_batch_size, data_ranks, rows,
        round_up(options_.global_batch_size, rows));
  return options_.global_batch_size / rows;
}

SampleRange TrainSampler::samples_of(int64_t step, int64_t data_rank, int64_t data_ranks, int64_t micro_batch) const {
  const int64_t count = micro_batches(data_ranks);
  SLIP_ASSERT(step >= 1);
  SLIP_ASSERT(data_rank >= 0 && data_rank < data_ranks);
  SLIP_ASSERT(micro_batch >= 0 && micro_batch < count);
  const int64_t row = (data_rank * count + micro_batch) * options_.micro_batch_size;
  return {.begin = static_cast<uint64_t>((step - 1) * options_.global_batch_size + row),
          .count = options_.micro_batch_size};
}

EvalSampler::EvalSampler(int64_t token_count, const SamplerOptions& options, int64_t eval_batches) : options_(options) {
  check_options(token_count, options, "validation");
  SLIP_ASSERT(eval_batches >= 0);
  const int64_t whole = (token_count - 1) / options.sequence_length;
  const bool all = eval_batches == 0 || eval_batches > whole / options.global_batch_size;
  windows_ = all ? whole : eval_batches * options.global_batch_size;
}

int64_t EvalSampler::rounds(int64_t data_ranks) const {
  SLIP_ASSERT(data_ranks >= 1);
  return ceil_div(windows_, data_ranks * options_.micro_batch_size);
}

EvalRows EvalSampler::rows_of(int64_t round, int64_t data_rank, int64_t data_ranks) const {
  SLIP_ASSERT(round >= 0 && round < rounds(data_ranks));
  SLIP_ASSERT(data_rank >= 0 && data_rank < data_ranks);
  const int64_t begin = (round * data_ranks + data_rank) * options_.micro_batch_size;
  return {.begin = begin, .valid_rows = std::clamp<int64_t>(windows_ - begin, 0, options_.micro_batch_size)};
}

}  // namespace slipstream::data

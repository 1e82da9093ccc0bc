// SPDX-License-Identifier: Apache-2.0
// Prepares the memory that the kernels of kernels/sample read and write.

#include "models/common/token_choice.h"

#include <algorithm>
#include <numeric>

#include "engine/base/check.h"
#include "engine/base/philox.h"
#include "kernels/step_scalars/step_scalars.h"

namespace slipstream::models {
namespace {

int32_t* ints(const std::unique_ptr<Allocation>& at) { return reinterpret_cast<int32_t*>(at->data()); }
uint32_t* sets(const std::unique_ptr<Allocation>& at) { return at ? reinterpret_cast<uint32_t*>(at->data()) : nullptr; }

}  // namespace

TokenChoice::TokenChoice(GenerationDevice& device, const TokenChoiceOptions& options)
    : device_(device),
      options_(options),
      words_(kernels::token_set_words(options.vocab)),
      key_(Philox(options.seed, "generate").key()) {
  const int64_t count = options_.sequences, count_bytes = bytes_of(count, DType::i32);
  states_ = device_.allocate(count * static_cast<int64_t>(sizeof(kernels::TextState)), "states of texts");
  if (options_.sampling.repetition_penalty != 1) seen_ = device_.allocate(4 * count * words_, "tokens of texts");
  if (!options_.holes.empty()) {
    holes_ = device_.allocate(4 * words_, "tokens that are never drawn");
    device_.write(sets(holes_), set_of(options_.holes).data(), 4 * words_);
  }
  for (auto* at : {&every_, &stepping_, &ids_, &places_, &chosen_})
    *at = device_.allocate(count_bytes, "rows of texts");
  std::vector<int32_t> every(static_cast<size_t>(count));
  std::iota(every.begin(), every.end(), 0);
  device_.write(ints(every_), every.data(), count_bytes);
  drawn_ = device_.allocate_host(static_cast<int64_t>(GenerationDevice::kTurns) * count_bytes, "drawn tokens");
}

std::vector<uint32_t> TokenChoice::set_of(std::span<const int32_t> tokens) const {
  std::vector<uint32_t> set(static_cast<size_t>(words_));
  for (const int32_t id : tokens)
    if (id < options_.vocab) set[static_cast<size_t>(id / 32)] |= 1u << id % 32;
  return set;
}

void TokenChoice::start(int sequence, std::span<const int32_t> text, int64_t token, uint32_t text_number,
                        uint32_t draws) {
  if (seen_) device_.write(sets(seen_) + sequence * words_, set_of(text).data(), 4 * words_);
  const kernels::TextState state{
      .id = text.back(), .token = static_cast<int32_t>(token), .draws = draws, .text = text_number};
  device_.write(states() + sequence, &state, sizeof state);
}

void TokenChoice::replace(int sequence, int32_t id) { device_.write(&states()[sequence].id, &id, sizeof id); }

TextRows TokenChoice::row_of(int sequence) { return {.count = 1, .sequences = ints(every_) + sequence}; }

TextRows TokenChoice::rows_of(std::span<const int> sequences) {
  if (!std::equal(sequences.begin(), sequences.end(), stepping_now_.begin(), stepping_now_.end())) {
    device_.finish();  // a pass in flight reads the old ones
    stepping_now_.assign(sequences.begin(), sequences.end());
    device_.write(ints(stepping_), stepping_now_.data(), bytes_of(std::ssize(sequences), DType::i32));
  }
  return {.count = std::ssize(sequences), .sequences = ints(stepping_), .ids = ints(ids_), .places = ints(places_)};
}

void TokenChoice::update(const TextRows& rows) {
  kernels::next_rows(
      device_.context(),
      {.sequences = rows.sequences, .text = states(), .rows = rows.count, .ids = ints(ids_), .places = ints(places_)});
}

void TokenChoice::choose(const TextRows& rows, float* logits, int64_t stride, size_t turn) {
  kernels::sample(device_.context(), {.logits = logits,
                                      .rows = rows.count,
                                      .vocab = options_.vocab,
                                      .stride = stride,
                                      .options = options_.sampling,
                                      .key = key_,
                                      .holes = sets(holes_),
                                      .seen = sets(seen_),
                                      .sequences = rows.sequences,
                                      .text = states(),
                                      .chosen = ints(chosen_)});
  kernels::copy(device_.context(),
                {.from = ints(chosen_), .to = drawn_in(turn), .size_bytes = bytes_of(rows.count, DType::i32)});
}

int32_t* TokenChoice::drawn_in(size_t turn) const {
  return ints(drawn_) + static_cast<int64_t>(turn) * options_.sequences;
}

size_t TokenChoice::issue(int64_t rows) {
  SLIP_ASSERT(passes_.size() < GenerationDevice::kTurns);
  passes_.push_back({issued_++ % GenerationDevice::kTurns, rows});
  return passes_.back().turn;
}

std::span<const int32_t> TokenChoice::take() {
  SLIP_ASSERT(!passes_.empty());
  const auto [turn, rows] = passes_.front();
  passes_.pop_front();
  device_.wait(turn);
  return {drawn_in(turn), static_cast<size_t>(rows)};
}

}  // namespace slipstream::models

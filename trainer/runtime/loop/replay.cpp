// SPDX-License-Identifier: Apache-2.0
// Runs one step twice from the same state, and compares the bits that the two executions leave.

#include <algorithm>
#include <vector>

#include "engine/base/fail_point.h"
#include "engine/base/hash.h"
#include "engine/base/log.h"
#include "engine/base/plural.h"
#include "engine/base/print.h"
#include "engine/base/units.h"
#include "engine/plan/saved_state.h"
#include "trainer/runtime/loop/trainer.h"

namespace slipstream::runtime {
namespace {

/// The kinds have the order of cause and consequence within a step.
enum Kind : char { kGradient = '0', kState, kMaster, kWeight };

/// The elements [begin, begin + elems) of the flat order in this rank's memory.
struct Array {
  Kind kind;
  std::string name;
  int64_t begin, elems;
  Slice at;
  DType dtype;
};

/// Returns the gradients of the last step, and everything that it left for the next one.
std::vector<Array> arrays_of(const Job& job) {
  std::vector<Array> arrays;
  for (size_t b = 0; b < job.storage.size(); ++b) {
    const BucketStorage& storage = job.storage[b];
    const Bucket& bucket = job.layout.buckets[b];
    const auto add_shard = [&](Kind kind, const std::string& name, const Slice& at, DType dtype) {
      arrays.push_back({kind, name, storage.shard_offset_elems, storage.shard_elems, at, dtype});
    };
    add_shard(kGradient, "gradient", storage.gradient, DType::f32);
    const std::vector<OptimizerState>& states = job.group_of(b).optimizer->states;
    for (size_t s = 0; s < states.size(); ++s) add_shard(kState, states[s].name, storage.states[s], states[s].dtype);
    for (const SavedArray& saved : saved_arrays(job, b))
      if (saved.name.starts_with("gradients."))
        arrays.push_back({kState, saved.name, saved.range.begin_elems, saved.range.elems, saved.from, saved.dtype});
    add_shard(kMaster, "master weight", storage.master, DType::f32);
    if (storage.values.size_bytes > 0)
      arrays.push_back({kWeight, "weight", bucket.offset_elems, bucket.elems, storage.values, job.model.dtype});
  }
  std::stable_sort(arrays.begin(), arrays.end(), [](const Array& a, const Array& b) { return a.kind < b.kind; });
  return arrays;
}

/// A hash of one rank's part of a tensor.
struct Bits {
  std::string name;  // the kind, then "momentum of TENSOR"
  uint64_t hash = 0;
  bool operator==(const Bits&) const = default;
};

std::vector<Bits> bits_of(Rank& rank) {
  const Job& job = rank.job();
  std::vector<std::byte> piece(kMiB);
  std::vector<Bits> bits;
  for (const Array& array : arrays_of(job))
    for (size_t p = 0; p < job.model.parameters.size(); ++p)
      for (const NamedTensor& tensor : job.model.parameters[p].tensors) {
        const int64_t from = job.layout.parameter_offsets[p] + tensor.begin_elems;
        const int64_t first = std::max(from, array.begin),
                      last = std::min(from + tensor.elems(), array.begin + array.elems);
        if (first >= last) continue;
        data::Xxh3 hash;
        const std::byte* at = rank.weights_at(array.at) + bytes_of(first - array.begin, array.dtype);
        for (int64_t left = bytes_of(last - first, array.dtype); left > 0;) {
          const int64_t size_bytes = std::min(left, std::ssize(piece));
          rank.device().copy_to_host(piece.data(), at, size_bytes);
          hash.update(piece.data(), size_bytes);
          at += size_bytes, left -= size_bytes;
        }
        bits.push_back(
            {fmt::format("{}{} of {}", static_cast<char>(array.kind), array.name, tensor.name), hash.low_bits()});
      }
  return bits;
}

/// Simulates, for tests, a fault of this rank's memory in its first optimizer state.
void flip_a_bit(Rank& rank) {
  for (const BucketStorage& storage : rank.job().storage) {
    if (storage.states.empty() || storage.shard_elems == 0) continue;
    uint32_t word = 0;
    rank.device().copy_to_host(&word, rank.weights_at(storage.states[0]), sizeof word);
    word ^= 1u << 20;
    rank.device().copy_from_host(rank.weights_at(storage.states[0]), &word, sizeof word);
    return;
  }
}

}  // namespace

void Trainer::replay(int64_t step) {
  const PhaseMark stepping = world_.phase(comm::RunPhase::step);
  const auto execute = [&](int64_t k) {
    rank_->issue(static_cast<uint32_t>(k));
    rank_->synchronize();
    rank_->drain();
    // Sets the limits of later steps. The result is ignored, because a reason to end was a reason for the run that is
    // repeated.
    static_cast<void>(guard_.judge(k, rank_->report(static_cast<uint32_t>(k))));
  };
  rank_->prime();
  for (int64_t before = resumed_ + 1; before < step; ++before) execute(before);
  rank_->synchronize();
  const Rank::State state = rank_->state();
  execute(step);
  const std::vector<Bits> first = bits_of(*rank_);
  rank_->set_state(state);
  if (fails_at("replay.flip")) flip_a_bit(*rank_);
  execute(step);
  const std::vector<Bits> second = bits_of(*rank_);
  const auto [mine, other] = std::mismatch(first.begin(), first.end(), second.begin());
  const std::vector<std::string> differing = world_.all_gather(mine == first.end() ? "" : mine->name, "replayed bits");
  auto found = differing.end();
  int64_t count = 0;
  for (auto each = differing.begin(); each != differing.end(); ++each) {
    if (each->empty()) continue;
    if (++count == 1 || each->front() < found->front()) found = each;
  }
  if (count > 0)
    throw NumericsError(
        "[replay] step {}: two executions from the same state differ on {} of {}. The first difference is in the {} on "
        "rank {}. Test the memory and the device of that rank, or run without it.",
        step, count, counted(world_.size(), "rank"), found->substr(1), found - differing.begin());
  if (world_.rank() == 0)
    print_result("step {}: two executions from the same state have the same bits on {}\n", step,
                 counted(world_.size(), "rank"));
}

}  // namespace slipstream::runtime

// SPDX-License-Identifier: Apache-2.0
// The state of a rank as seen from outside: initial weights, reads and writes at rest, snapshots.

#include <algorithm>
#include <cstring>

#include "engine/base/check.h"
#include "engine/base/parallel.h"
#include "engine/base/philox.h"
#include "engine/plan/saved_state.h"
#include "trainer/runtime/rank/rank.h"

namespace slipstream::runtime {
namespace {

// Tensors are filled piece by piece, because a second copy of a large tensor would raise the process's peak memory.
constexpr int64_t kPieceElems = 1 << 18;
constexpr int64_t kDrawnAtOnce = 4096;  // the random numbers that a thread draws at once

/// Returns true if a step reads what another one has left in such memory.
bool outlives_steps(Owner owner) {
  return owner != Owner::activations && owner != Owner::scratch && owner != Owner::snapshot && owner != Owner::kept;
}

}  // namespace

void Rank::initialise(uint64_t seed) {
  // A single thread would need more than a minute to draw a billion parameters.
  ThreadPool pool(threads_);
  for (size_t p = 0; p < job_->model.parameters.size(); ++p) {
    const ParameterSpec& parameter = job_->model.parameters[p];
    for (size_t t = 0; t < parameter.tensors.size(); ++t) {
      const NamedTensor& tensor = parameter.tensors[t];
      const Philox random(seed, tensor.name);
      const int64_t elems = tensor.elems();
      std::vector<float> values(static_cast<size_t>(std::min(elems, kPieceElems)));
      for (int64_t begin = 0; begin < elems; begin += kPieceElems) {
        const auto piece = std::span(values).first(static_cast<size_t>(std::min(kPieceElems, elems - begin)));
        std::fill(piece.begin(), piece.end(), 0.0f);  // padding stays zero
        tensor.for_runs(tensor.split.index, begin, static_cast<int64_t>(piece.size()),
                        [&](int64_t held, int64_t whole, int64_t count) {
                          float* const to = piece.data() + (held - begin);
                          if (parameter.init.kind != Init::Kind::normal)
                            std::fill_n(to, count, parameter.init.kind == Init::Kind::ones ? 1.0f : 0.0f);
                          else
                            pool.parallel_for(count, kDrawnAtOnce, [&](int64_t first, int64_t last) {
                              for (int64_t i = first; i < last; ++i)
                                to[i] = parameter.init.std * random.normal(static_cast<uint64_t>(whole + i));
                            });
                        });
        write(p, t, begin, piece);
      }
    }
  }
}

std::vector<std::pair<int64_t, int64_t>> Rank::stored(size_t parameter, size_t tensor) const {
  const NamedTensor& named = job_->model.parameters[parameter].tensors[tensor];
  const int64_t offset = job_->layout.parameter_offsets[parameter] + named.begin_elems;
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (size_t b = 0; b < job_->storage.size(); ++b) {
    const BucketStorage& storage = job_->storage[b];
    const Bucket& bucket = job_->layout.buckets[b];
    const bool whole = !job_->placement_of(b).gathers_encoded() && storage.values.size_bytes > 0;
    const int64_t begin = whole ? bucket.offset_elems : storage.shard_offset_elems,
                  elems = whole ? bucket.elems : storage.shard_elems;
    const int64_t first = std::max(begin - offset, int64_t{0}), last = std::min(begin + elems - offset, named.elems());
    if (first < last) ranges.emplace_back(first, last);
  }
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

void Rank::set_tensor(size_t parameter, size_t tensor, std::span<const float> values) {
  const NamedTensor& named = job_->model.parameters[parameter].tensors[tensor];
  SLIP_ASSERT(static_cast<int64_t>(values.size()) == named.whole_elems());
  named.for_runs(named.split.index, 0, named.elems(), [&](int64_t held, int64_t whole, int64_t count) {
    write(parameter, tensor, held, values.subspan(static_cast<size_t>(whole), static_cast<size_t>(count)));
  });
}

void Rank::write(size_t parameter, size_t tensor, int64_t tensor_begin, std::span<const float> values) {
  const NamedTensor& named = job_->model.parameters[parameter].tensors[tensor];
  const int64_t count = static_cast<int64_t>(values.size());
  SLIP_ASSERT(tensor_begin >= 0 && tensor_begin + count <= named.elems());
  const int64_t offset = job_->layout.parameter_offsets[parameter] + named.begin_elems + tensor_begin;
  std::vector<bfloat16> rounded;
  const auto in_format = [&](const Format& format) -> const void* {
    if (format != DType::bf16) return values.data();
    rounded.resize(values.size());
    std::transform(values.begin(), values.end(), rounded.begin(), [](float v) { return bfloat16(v); });
    return rounded.data();
  };
  // Copies the values inside [begin, begin + elems) of the flat order to `where`.
  const auto put = [&](const Slice& where, int64_t begin, int64_t elems, const void* from, int64_t elem_bytes) {
    const int64_t first = std::max(begin, offset), last = std::min(begin + elems, offset + count);
    if (where.size_bytes == 0 || first >= last) return;
    device_->copy_from_host(address(where.buffer) + where.begin_bytes + (first - begin) * elem_bytes,
                            static_cast<const std::byte*>(from) + (first - offset) * elem_bytes,
                            (last - first) * elem_bytes);
  };
  for (size_t b = 0; b < job_->storage.size(); ++b) {
    const BucketStorage& storage = job_->storage[b];
    const Bucket& bucket = job_->layout.buckets[b];
    if (offset >= bucket.offset_elems + bucket.elems || offset + count <= bucket.offset_elems) continue;
    // The first gathers (PlanKind::prime) bring encoded parameters in rounded form, int8 also on the owner.
    const Placement& placement = job_->placement_of(b);
    const Format travels = placement.gather_wire;
    const void* working = in_format(travels);
    if (!placement.gathers_encoded())
      put(storage.values, bucket.offset_elems, bucket.elems, working, size_of(travels.element));
    if (!travels.is_scaled())
      put(storage.working, storage.shard_offset_elems, storage.shard_elems, working, size_of(travels.element));
    if (!(storage.master == storage.working))
      put(storage.master, storage.shard_offset_elems, storage.shard_elems, values.data(), 4);
  }
}

std::map<std::string, TensorLocation> tensors_of(const std::vector<std::shared_ptr<const Job>>& stages) {
  std::map<std::string, TensorLocation> places;
  for (size_t s = 0; s < stages.size(); ++s) {
    const std::vector<ParameterSpec>& parameters = stages[s]->model.parameters;
    for (size_t p = 0; p < parameters.size(); ++p)
      for (size_t t = 0; t < parameters[p].all_tensors(); ++t)
        places.try_emplace(parameters[p].tensor(t).name, TensorLocation{s, p, t});
  }
  return places;
}

template <typename Take>
void Rank::for_held(Slice BucketStorage::*what, int64_t begin, int64_t end, const Take& take) {
  synchronize();
  for (const BucketStorage& storage : job_->storage) {
    const int64_t first = std::max(begin, storage.shard_offset_elems),
                  last = std::min(end, storage.shard_offset_elems + storage.shard_elems);
    if (first < last)
      device_->copy_to_host(take(first, last - first),
                            weights_at(storage.*what) + 4 * (first - storage.shard_offset_elems), 4 * (last - first));
  }
}

std::vector<float> Rank::held(Slice BucketStorage::*what, int64_t begin, int64_t end) {
  std::vector<float> values;
  for_held(what, begin, end, [&](int64_t, int64_t elems) {
    values.resize(values.size() + static_cast<size_t>(elems));
    return values.data() + values.size() - elems;
  });
  return values;
}

void Rank::read(Slice BucketStorage::*what, size_t parameter, size_t tensor, int64_t begin, std::span<float> out) {
  SLIP_ASSERT(!job_->sharding().states);
  const NamedTensor& named = job_->model.parameters[parameter].tensors[tensor];
  const auto elems = static_cast<int64_t>(out.size());
  SLIP_ASSERT(begin >= 0 && begin + elems <= named.elems());
  const int64_t from = job_->layout.parameter_offsets[parameter] + named.begin_elems + begin;
  int64_t copied = 0;
  // This does not use held(), because no plan counts a second copy of a whole matrix.
  for_held(what, from, from + elems, [&](int64_t first, int64_t count) {
    copied += count;
    return out.data() + (first - from);
  });
  SLIP_ASSERT(copied == elems);
}

void Rank::read_state(size_t bucket, size_t array, int64_t begin, std::span<float> out) {
  const Slice from = saved_arrays(*job_, bucket)[array].from;
  SLIP_ASSERT(4 * (begin + std::ssize(out)) <= from.size_bytes);
  device_->copy_to_host(out.data(), weights_at(from) + 4 * begin, 4 * std::ssize(out));
}

void Rank::write_state(const Slice& slice, int64_t first, int64_t begin, std::span<const float> values) {
  SLIP_ASSERT(begin >= first && 4 * (begin - first + std::ssize(values)) <= slice.size_bytes);
  device_->copy_from_host(address(slice.buffer) + slice.begin_bytes + 4 * (begin - first), values.data(),
                          4 * std::ssize(values));
}

Rank::State Rank::state() {
  synchronize();
  State state{.arenas = std::vector<std::vector<std::byte>>(arenas_.size()), .issued = issued_};
  for (size_t a = 0; a < arenas_.size(); ++a) {
    if (!outlives_steps(arena_owners_[a])) continue;
    state.arenas[a].resize(static_cast<size_t>(arenas_[a]->size_bytes()));
    device_->copy_to_host(state.arenas[a].data(), arenas_[a]->data(), arenas_[a]->size_bytes());
  }
  return state;
}

void Rank::set_state(const State& state) {
  synchronize();
  for (size_t a = 0; a < arenas_.size(); ++a)
    if (!state.arenas[a].empty())
      device_->copy_from_host(arenas_[a]->data(), state.arenas[a].data(), arenas_[a]->size_bytes());
  issued_ = state.issued;
}

bool Rank::snapshot_done() const {
  return std::all_of(job_->plans.begin(), job_->plans.end(),
                     [&](const PlanRow& row) { return row.kind != PlanKind::save || scheduler_->ended(row.plan); });
}

std::span<const std::byte> Rank::snapshot(size_t bucket, size_t array) const {
  const Slice& slice = job_->storage[bucket].snapshots[array];
  return {address(slice.buffer) + slice.begin_bytes, static_cast<size_t>(slice.size_bytes)};
}

std::span<const std::byte> Rank::kept(BufferId buffer, int slot) const {
  const int64_t slot_bytes = job_->keeping.slot_bytes;
  return {address(buffer) + slot * slot_bytes, static_cast<size_t>(slot_bytes)};
}

std::vector<std::byte> Rank::saved(size_t bucket, size_t array) {
  synchronize();
  const Slice from = saved_arrays(*job_, bucket)[array].from;
  std::vector<std::byte> bytes(static_cast<size_t>(from.size_bytes));
  device_->copy_to_host(bytes.data(), weights_at(from), from.size_bytes);
  return bytes;
}

}  // namespace slipstream::runtime

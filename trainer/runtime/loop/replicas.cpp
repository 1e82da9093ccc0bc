// SPDX-License-Identifier: Apache-2.0
// Hashes each replicated tensor, gathers the hashes of all ranks and finds the minority.

#include "trainer/runtime/loop/replicas.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "engine/base/hash.h"
#include "engine/base/units.h"

namespace slipstream::runtime {
namespace {

/// The elements [begin, end) of the flat order, and their bytes on this rank.
struct Resident {
  int64_t begin = 0, end = 0;
  const std::byte* bytes = nullptr;
  int64_t elem_bytes = 0;
};

/// Returns the whole buckets that compute reads, or the masters beside them, in flat order.
std::vector<Resident> residents(const Rank& rank, bool masters) {
  const Job& job = rank.job();
  std::vector<Resident> all;
  for (size_t b = 0; b < job.storage.size(); ++b) {
    const BucketStorage& storage = job.storage[b];
    const Bucket& bucket = job.layout.buckets[b];
    const bool apart = storage.values.size_bytes == 0 || storage.master.buffer != storage.values.buffer;
    if (masters && apart && !job.placement_of(b).holds_alone(job.mesh))
      all.push_back({storage.shard_offset_elems, storage.shard_offset_elems + storage.shard_elems,
                     rank.weights_at(storage.master), size_of(DType::f32)});
    if (!masters && storage.values.size_bytes > 0)
      all.push_back({bucket.offset_elems, bucket.offset_elems + bucket.elems, rank.weights_at(storage.values),
                     size_of(job.model.dtype)});
  }
  return all;
}

/// Returns true if another rank holds the bits of this tensor.
bool is_replicated(const Job& job, const NamedTensor& tensor) {
  return job.mesh.group_size(tensor.expert_rank < 0 ? Axis::replica : Axis::expert_data) > 1 ||
         (job.mesh.group_size(Axis::tensor) > 1 && tensor.split.parts == 1) ||
         (job.has_tied_copies && tensor.name == job.tied_name);
}

std::string ranks_in_words(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  return fmt::format("ranks {} and {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "), ranks.back());
}

}  // namespace

std::vector<HeldBits> replicated_bits(Rank& rank, const std::vector<std::shared_ptr<const Job>>& stages) {
  rank.synchronize();
  const Job& job = rank.job();
  const std::map<std::string, TensorLocation> names = tensors_of(stages);
  std::vector<std::byte> piece(kMiB);
  std::vector<HeldBits> bits;
  for (const bool masters : {false, true}) {
    const std::vector<Resident> held = residents(rank, masters);
    for (size_t p = 0; p < job.model.parameters.size(); ++p)
      for (const NamedTensor& tensor : job.model.parameters[p].tensors) {
        if (!is_replicated(job, tensor)) continue;
        const int64_t begin = job.layout.parameter_offsets[p] + tensor.begin_elems, end = begin + tensor.elems();
        data::Xxh3 hash;
        int64_t first_elem = 0, elems = 0;
        for (const Resident& range : held) {
          const int64_t first = std::max(begin, range.begin), last = std::min(end, range.end);
          if (first >= last) continue;
          if (elems == 0) first_elem = first - begin;
          elems += last - first;
          const std::byte* from = range.bytes + (first - range.begin) * range.elem_bytes;
          for (int64_t left = (last - first) * range.elem_bytes; left > 0;) {
            const int64_t size_bytes = std::min(left, std::ssize(piece));
            rank.device().copy_to_host(piece.data(), from, size_bytes);
            hash.update(piece.data(), size_bytes);
            from += size_bytes, left -= size_bytes;
          }
        }
        if (elems > 0)
          bits.push_back({.place = {std::distance(names.begin(), names.find(tensor.name)), masters, tensor.split.index,
                                    first_elem, elems},
                          .hash = hash.low_bits()});
      }
  }
  return bits;
}

std::optional<Drift> find_drift(std::span<const std::vector<HeldBits>> by_rank) {
  std::map<std::array<int64_t, 5>, std::map<uint64_t, std::vector<int>>> ranks_of;  // by place and hash
  for (size_t r = 0; r < by_rank.size(); ++r)
    for (const HeldBits& bits : by_rank[r]) ranks_of[bits.place][bits.hash].push_back(static_cast<int>(r));
  std::optional<Drift> drift;
  std::set<int> drifted, suspects;
  for (const auto& [place, hashes] : ranks_of) {
    if (hashes.size() == 1) continue;
    if (!drift) drift = Drift{.tensor = static_cast<size_t>(place[0]), .ranks = {}};
    size_t most = 0, all = 0;
    for (const auto& [hash, ranks] : hashes) most = std::max(most, ranks.size()), all += ranks.size();
    for (const auto& [hash, ranks] : hashes) {
      if (2 * most > all && ranks.size() < most) drifted.insert(ranks.begin(), ranks.end());
      if (2 * most <= all && suspects.empty())
        for (const auto& [other, others] : hashes) suspects.insert(others.begin(), others.end());
    }
  }
  if (!drift) return {};
  drift->is_certain = !drifted.empty();
  const std::set<int>& named = drift->is_certain ? drifted : suspects;
  drift->ranks.assign(named.begin(), named.end());
  return drift;
}

std::string drifted_replicas(World& world, Rank& rank, const std::vector<std::shared_ptr<const Job>>& stages) {
  if (world.size() == 1) return {};
  const std::vector<HeldBits> mine = replicated_bits(rank, stages);
  std::vector<std::vector<HeldBits>> by_rank;
  for (const std::string& bytes :
       world.all_gather({reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(HeldBits)},
                        "the hashes of their parameters")) {
    by_rank.emplace_back(bytes.size() / sizeof(HeldBits));
    std::memcpy(by_rank.back().data(), bytes.data(), bytes.size());
  }
  const std::optional<Drift> drift = find_drift(by_rank);
  if (!drift) return {};
  const auto names = tensors_of(stages);
  const std::string& tensor = std::next(names.begin(), static_cast<std::ptrdiff_t>(drift->tensor))->first;
  const std::string ranks = ranks_in_words(drift->ranks);
  if (drift->is_certain)
    return fmt::format(
        "the parameters of {} differ from those of most ranks, which must hold the same bits; {} is the first such "
        "tensor. Test the memory and the device of {}, or run without it.",
        ranks, tensor, ranks);
  return fmt::format(
      "the parameters of {} differ from each other, though they must hold the same bits; {} is the first such tensor. "
      "Without a majority the drifted rank is unknown. Test the memory and the device of each.",
      ranks, tensor);
}

}  // namespace slipstream::runtime

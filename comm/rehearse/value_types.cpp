// SPDX-License-Identifier: Apache-2.0
// Sums of terms, and the interval map of types.

#include "comm/rehearse/value_types.h"

#include <algorithm>

namespace slipstream::comm {

int32_t TermPool::intern(Terms terms) {
  const auto [found, is_new] = ids_.try_emplace(std::move(terms), static_cast<int32_t>(pool_.size()));
  if (is_new) pool_.push_back(found->first);
  return found->second;
}

std::optional<int32_t> TermPool::sum(int32_t a, int32_t b) {
  if (a > b) std::swap(a, b);
  if (const auto found = sums_.find({a, b}); found != sums_.end()) return found->second;
  Terms all = (*this)[a], joined;
  all.insert(all.end(), (*this)[b].begin(), (*this)[b].end());
  std::sort(all.begin(), all.end());
  for (Term next : all) {
    while (!joined.empty()) {
      const Term last = joined.back();
      if (last.use != next.use || last.micro_batch_end < next.micro_batch) break;
      const bool same = last.micro_batch_end > next.micro_batch;
      if (same && (last.of != next.of || next.begin < last.end)) {
        twice = next;
        return {};
      }
      if (same ? next.begin > last.end : !last.is_whole() || !next.is_whole()) break;
      joined.pop_back();
      if (same)
        next.begin = last.begin;
      else
        next.micro_batch = last.micro_batch;
      if (next.is_whole()) next.begin = 0, next.end = next.of = 1;
    }
    joined.push_back(next);
  }
  return sums_[{a, b}] = intern(std::move(joined));
}

Type moved(Type type, int64_t bytes) {
  if (type.elem_bytes > 0) type.first += bytes / type.elem_bytes;
  return type;
}

TypeMap::Segments& TypeMap::of(BufferId buffer) {
  if (buffer >= buffers_.size()) buffers_.resize(buffer + 1);
  return buffers_[buffer];
}

void TypeMap::split(Segments& segments, int64_t at_bytes) {
  auto found = segments.lower_bound(at_bytes);
  if (found == segments.begin() || (found != segments.end() && found->first == at_bytes)) return;
  --found;
  if (found->second.end_bytes <= at_bytes) return;
  const Segment rest{found->second.end_bytes, moved(found->second.type, at_bytes - found->first)};
  found->second.end_bytes = at_bytes;
  segments.emplace(at_bytes, rest);
}

TypeMap::Segments& TypeMap::cut_out(const Slice& slice) {
  Segments& segments = of(slice.buffer);
  if (slice.size_bytes <= 0) return segments;
  split(segments, slice.begin_bytes);
  split(segments, slice.end_bytes());
  segments.erase(segments.lower_bound(slice.begin_bytes), segments.lower_bound(slice.end_bytes()));
  return segments;
}

Runs TypeMap::read(const Slice& slice) const {
  Runs runs;
  if (slice.buffer >= buffers_.size() || slice.size_bytes <= 0) return runs;
  const Segments& segments = buffers_[slice.buffer];
  auto at = segments.upper_bound(slice.begin_bytes);
  if (at != segments.begin()) --at;
  for (; at != segments.end() && at->first < slice.end_bytes(); ++at) {
    const int64_t begin = std::max(at->first, slice.begin_bytes),
                  end = std::min(at->second.end_bytes, slice.end_bytes());
    if (begin < end)
      runs.push_back({begin - slice.begin_bytes, end - slice.begin_bytes, moved(at->second.type, begin - at->first)});
  }
  return runs;
}

const Type* TypeMap::only(const Slice& slice) const {
  if (slice.buffer >= buffers_.size()) return nullptr;
  const Segments& segments = buffers_[slice.buffer];
  auto at = segments.upper_bound(slice.begin_bytes);
  if (at == segments.begin()) return nullptr;
  --at;
  const bool covers = at->second.end_bytes >= slice.end_bytes(),
             has_place = at->second.type.elem_bytes > 0 && at->first != slice.begin_bytes;
  return covers && !has_place ? &at->second.type : nullptr;
}

void TypeMap::write(const Slice& slice, const Type& type) {
  if (slice.size_bytes <= 0) return;
  // Most writes are to the same bytes as an earlier one.
  Segments& segments = of(slice.buffer);
  if (const auto found = segments.find(slice.begin_bytes);
      found != segments.end() && found->second.end_bytes == slice.end_bytes()) {
    found->second.type = type;
    return;
  }
  cut_out(slice).insert_or_assign(slice.begin_bytes, Segment{slice.end_bytes(), type});
}

void TypeMap::write(const Slice& slice, const Runs& runs) {
  if (runs.size() == 1 && runs[0].begin == 0 && runs[0].end == slice.size_bytes) return write(slice, runs[0].type);
  Segments& segments = cut_out(slice);
  for (const Run& run : runs)
    if (run.begin < run.end)
      segments.insert_or_assign(slice.begin_bytes + run.begin, Segment{slice.begin_bytes + run.end, run.type});
}

}  // namespace slipstream::comm

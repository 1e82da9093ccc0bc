// SPDX-License-Identifier: Apache-2.0
// Applies merges to words by a scan for short words, a heap for long ones, and a cache for both.

#include "engine/data/tokenizers/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "engine/base/check.h"
#include "engine/base/utf8.h"

namespace slipstream::data {
namespace {

constexpr size_t kEntries = 1 << 15;  // 2 MiB per thread
constexpr size_t kShortSymbols = 48;  // longer words use the heap, because the scan is quadratic
constexpr int32_t kNoRank = INT32_MAX;
constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581

uint64_t mixed(uint64_t value) {
  value *= 0x9e3779b97f4a7c15;
  return value ^ value >> 32;
}

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

uint64_t hash_of(const unsigned char (&padded)[31], size_t size) {
  uint64_t parts[4] = {};
  std::memcpy(parts, padded, sizeof padded);
  uint64_t hash = size;
  for (const uint64_t part : parts) hash = mixed(hash ^ part);
  return hash;
}

}  // namespace

Bpe::Scratch::Scratch() : entries_(kEntries) {}

Bpe::Bpe(const BpeModel& model) : model_(model) {
  slots_.resize(std::bit_ceil(std::max<size_t>(16, 2 * model.merges.size())));
  mask_ = slots_.size() - 1;
  for (const Merge& merge : model.merges) {
    const uint64_t pair = pair_of(merge.left, merge.right);
    uint64_t at = mixed(pair) & mask_;
    while (slots_[at].pair != ~uint64_t{0}) at = (at + 1) & mask_;
    slots_[at] = {pair, merge.rank, merge.result};
  }
}

const Bpe::Slot* Bpe::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  for (uint64_t at = mixed(pair) & mask_;; at = (at + 1) & mask_) {
    if (slots_[at].pair == pair) return &slots_[at];
    if (slots_[at].pair == ~uint64_t{0}) return nullptr;
  }
}

void Bpe::encode(std::string_view word, bool spaces, Scratch& scratch, std::vector<int32_t>& ids) const {
  const auto uncached = [&] {
    if (!spaces || word.find(' ') == std::string_view::npos) return encode_uncached(word, scratch, ids);
    scratch.mapped_.clear();
    for (const char c : word) {
      if (c == ' ')
        scratch.mapped_ += kSpaceMark;
      else
        scratch.mapped_ += c;
    }
    encode_uncached(scratch.mapped_, scratch, ids);
  };
  if (word.size() > Scratch::kWordBytes || word.empty()) return uncached();
  unsigned char padded[Scratch::kWordBytes] = {};
  std::memcpy(padded, word.data(), word.size());
  Scratch::Entry& entry = scratch.entries_[hash_of(padded, word.size()) % kEntries];
  if (entry.size == word.size() && std::memcmp(entry.word, padded, sizeof padded) == 0) {
    ids.insert(ids.end(), entry.ids, entry.ids + entry.count);
    return;
  }
  const size_t before = ids.size();
  uncached();
  const size_t count = ids.size() - before;
  if (count > Scratch::kIds) return;
  entry.size = static_cast<unsigned char>(word.size());
  std::memcpy(entry.word, padded, sizeof padded);
  entry.count = static_cast<int32_t>(count);
  std::copy(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end(), entry.ids);
}

void Bpe::encode_uncached(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (model_.whole_words) {
    if (const auto found = model_.word_ids.find(word); found != model_.word_ids.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  scratch.ids_.clear();
  split(word, scratch.ids_);
  if (scratch.ids_.size() > 1) {
    if (scratch.ids_.size() <= kShortSymbols)
      merge_short(scratch);
    else
      merge_long(scratch);
  }
  ids.insert(ids.end(), scratch.ids_.begin(), scratch.ids_.end());
}

void Bpe::split(std::string_view word, std::vector<int32_t>& symbols) const {
  bool after_unknown = false;
  const auto add = [&](int32_t id) {
    symbols.push_back(id);
    after_unknown = false;
  };
  const auto add_unknown = [&] {
    if (model_.unknown < 0 || (after_unknown && model_.fuse_unknown)) return;
    symbols.push_back(model_.unknown);
    after_unknown = true;
  };
  if (model_.byte_level) {
    for (const char c : word) {
      const int32_t id = model_.byte_ids[static_cast<unsigned char>(c)];
      if (id >= 0)
        add(id);
      else
        add_unknown();
    }
    return;
  }
  for (size_t at = 0; at < word.size();) {
    const std::string_view point = word.substr(at, static_cast<size_t>(next_code_point(word, at).size_bytes));
    SLIP_ASSERT(!point.empty());
    at += point.size();
    if (const auto found = model_.char_ids.find(point); found != model_.char_ids.end()) {
      add(found->second);
      continue;
    }
    const bool has_bytes = model_.byte_fallback && std::all_of(point.begin(), point.end(), [&](char c) {
                             return model_.byte_ids[static_cast<unsigned char>(c)] >= 0;
                           });
    if (!has_bytes) {
      add_unknown();
      continue;
    }
    for (const char c : point) add(model_.byte_ids[static_cast<unsigned char>(c)]);
  }
}

void Bpe::merge_short(Scratch& scratch) const {
  std::vector<int32_t>&ids = scratch.ids_, &ranks = scratch.ranks_;
  ranks.resize(ids.size());
  std::vector<int32_t>& results = scratch.next_;
  results.resize(ids.size());
  const auto look = [&](size_t at) {
    const Slot* slot = at + 1 < ids.size() ? find(ids[at], ids[at + 1]) : nullptr;
    ranks[at] = slot != nullptr ? slot->rank : kNoRank;
    if (slot != nullptr) results[at] = slot->result;
  };
  for (size_t at = 0; at < ids.size(); ++at) look(at);
  for (;;) {
    const auto lowest = std::min_element(ranks.begin(), ranks.end());
    if (*lowest == kNoRank) return;
    const auto at = static_cast<size_t>(lowest - ranks.begin());
    ids[at] = results[at];
    const auto behind = static_cast<std::ptrdiff_t>(at + 1);
    ids.erase(ids.begin() + behind);
    ranks.erase(ranks.begin() + behind);
    results.erase(results.begin() + behind);
    look(at);
    if (at > 0) look(at - 1);
  }
}

void Bpe::merge_long(Scratch& scratch) const {
  std::vector<int32_t>&ids = scratch.ids_, &next = scratch.next_, &previous = scratch.previous_;
  const auto count = static_cast<int32_t>(ids.size());
  next.resize(ids.size());
  previous.resize(ids.size());
  auto& heap = scratch.heap_;
  heap.clear();
  const auto push = [&](int32_t at) {
    const int32_t right = next[static_cast<size_t>(at)];
    if (right >= count) return;
    if (const Slot* slot = find(ids[static_cast<size_t>(at)], ids[static_cast<size_t>(right)]); slot != nullptr) {
      heap.emplace_back(pair_of(slot->rank, at), slot->result);
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  };
  for (int32_t at = 0; at < count; ++at) {
    next[static_cast<size_t>(at)] = at + 1;
    previous[static_cast<size_t>(at)] = at - 1;
  }
  for (int32_t at = 0; at < count; ++at) push(at);
  while (!heap.empty()) {
    const auto [key, result] = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto at = static_cast<int32_t>(key & UINT32_MAX);
    const int32_t right = ids[static_cast<size_t>(at)] < 0 ? count : next[static_cast<size_t>(at)];
    if (right >= count) continue;
    // The entry is stale if a merge has already changed one of its two tokens.
    const Slot* slot = find(ids[static_cast<size_t>(at)], ids[static_cast<size_t>(right)]);
    if (slot == nullptr || slot->rank != static_cast<int32_t>(key >> 32) || slot->result != result) continue;
    ids[static_cast<size_t>(at)] = result;
    ids[static_cast<size_t>(right)] = -1;
    next[static_cast<size_t>(at)] = next[static_cast<size_t>(right)];
    if (next[static_cast<size_t>(at)] < count) previous[static_cast<size_t>(next[static_cast<size_t>(at)])] = at;
    push(at);
    if (previous[static_cast<size_t>(at)] >= 0) push(previous[static_cast<size_t>(at)]);
  }
  std::erase(ids, -1);
}

}  // namespace slipstream::data

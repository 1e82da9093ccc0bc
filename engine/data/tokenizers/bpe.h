// SPDX-License-Identifier: Apache-2.0
#pragma once
// Byte-pair encoding of single words. Source: Sennrich et al. 2016, arXiv:1508.07909, algorithm 1.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace slipstream::data {

/// Two neighbouring tokens and the token that replaces them. The pair of the lowest rank is replaced first, and among
/// equal pairs the leftmost one.
struct Merge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t rank = 0;
  int32_t result = 0;
};

struct BpeModel {
  std::vector<std::string> tokens;    // by id: the bytes of the token; empty if no token has the id
  std::vector<Merge> merges;          // their ids are within `tokens`; no two have the same pair
  bool byte_level = true;             // a word begins as its bytes; otherwise as its characters
  bool byte_fallback = false;         // a character without a token becomes its byte tokens
  std::array<int32_t, 256> byte_ids;  // by byte: its token; -1: none
  int32_t unknown = -1;               // the token of a character or byte without a token of its own; -1: it is left out
  bool fuse_unknown = false;          // neighbouring unknown tokens become one
  bool whole_words = false;           // a word that equals a token becomes that token without merges
  /// By character: its token, without those of bytes; views into `tokens`.
  std::unordered_map<std::string_view, int32_t> char_ids;
  std::unordered_map<std::string_view, int32_t> word_ids;  // with whole_words, by word: its token; views into `tokens`

  BpeModel() { byte_ids.fill(-1); }
};

/// Encodes words. Immutable, and may be shared between threads.
class Bpe {
 public:
  /// `model` must outlive this object.
  explicit Bpe(const BpeModel& model);

  /// The memory of one thread: a cache of short words, and the working arrays.
  class Scratch {
   public:
    Scratch();

   private:
    friend class Bpe;
    static constexpr size_t kWordBytes = 31, kIds = 7;
    struct alignas(64) Entry {
      unsigned char size = 0;  // the bytes of the word; 0: the entry is free
      unsigned char word[kWordBytes] = {};
      int32_t count = 0;
      int32_t ids[kIds] = {};
    };
    std::vector<Entry> entries_;
    std::vector<int32_t> ids_, ranks_, next_, previous_;
    std::string mapped_;
    std::vector<std::pair<uint64_t, int32_t>> heap_;
  };

  /// Appends the ids of `word`. With `spaces`, every space of the word counts as the character U+2581.
  void encode(std::string_view word, bool spaces, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  struct Slot {
    uint64_t pair = ~uint64_t{0};
    int32_t rank = 0;
    int32_t result = 0;
  };
  const Slot* find(int32_t left, int32_t right) const;
  void encode_uncached(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;
  void split(std::string_view word, std::vector<int32_t>& symbols) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  const BpeModel& model_;
  std::vector<Slot> slots_;
  uint64_t mask_ = 0;
};

}  // namespace slipstream::data

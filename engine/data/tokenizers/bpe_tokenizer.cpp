// SPDX-License-Identifier: Apache-2.0
// Encodes windows of a text in three steps: added tokens, then normalized segments, then words.

#include "engine/data/tokenizers/bpe_tokenizer.h"

#include <charconv>
#include <mutex>

#include "engine/base/check.h"
#include "engine/base/utf8.h"

namespace slipstream::data {
namespace {

constexpr std::string_view kMark = "\xe2\x96\x81";  // U+2581
constexpr int64_t kContextBytes = 1024;

/// Positions that callers ask for in ascending order.
struct PlacesPassed {
  AddedTokens::Places places;
  size_t passed = 0;

  bool holds(size_t at) {
    while (passed < places.size() && places[passed].second <= at) ++passed;
    return passed < places.size() && places[passed].first <= at;
  }
};

/// The ids of a window so far.
class Output {
 public:
  Output(const TakeIds& take, std::vector<int32_t>& ids, const TextWindow& window)
      : take_(take), ids_(ids), stop_(window.stop < 0 ? SIZE_MAX : static_cast<size_t>(window.stop)) {
    ids_.clear();
  }
  void add(int32_t id) { ids_.push_back(id); }
  std::vector<int32_t>& ids() { return ids_; }
  /// Returns the ranges of the window that have no cuts, ascending.
  AddedTokens::Places& uncut() { return uncut_.places; }
  /// All ids so far belong to the first `bytes` of the window and depend on nothing after them.
  void cut(size_t bytes, bool end_of_text) {
    if (ids_.size() < Tokenizer::kPieceIds && bytes < stop_ && !end_of_text) return;
    if (uncut_.holds(bytes)) return;
    for (size_t begin = 0; begin < ids_.size() || begin == 0; begin += Tokenizer::kPieceIds) {
      const size_t count = std::min(Tokenizer::kPieceIds, ids_.size() - begin);
      take_(std::span(ids_).subspan(begin, count),
            begin + count == ids_.size() ? static_cast<int64_t>(bytes - done_bytes_) : 0);
    }
    ids_.clear();
    done_bytes_ = bytes;
  }
  /// Returns true after the cut at `stop`.
  bool stopped() const { return done_bytes_ >= stop_; }
  size_t done_bytes() const { return done_bytes_; }

 private:
  const TakeIds& take_;
  std::vector<int32_t>& ids_;
  PlacesPassed uncut_;
  size_t stop_, done_bytes_ = 0;
};

/// The memory of one thread.
struct Work {
  explicit Work(const WordRules& rules) : splitter(rules) {}
  WordSplitter splitter;
  Bpe::Scratch bpe;
  NormalizedText normalized;
  std::string prefixed;
  std::vector<int32_t> ids;
};

/// The state of a segment, or of a part of it.
struct Span {
  bool begins = false;       // it begins a segment
  bool begins_text = false;  // it begins the text
  bool last = true;          // no text after it influences it
  bool ends_text = false;    // it ends the text
};

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeParts parts)
      : parts_(std::move(parts)), bpe_(parts_.model), raw_(added(false)), normalized_(added(true)) {
    decoded_.resize(parts_.model.tokens.size());
    for (size_t id = 0; id < decoded_.size(); ++id) decoded_[id] = text_of(parts_.model.tokens[id]);
    // A token of the normalized text stands for the original text there.
    for (const AddedToken& token : parts_.added)
      decoded_[static_cast<size_t>(token.id)] =
          token.normalized && parts_.decoder.spaces ? text_of(parts_.normalizer.apply(token.content)) : token.content;
  }
  std::string name() const override { return parts_.name; }
  int32_t vocab_size() const override { return static_cast<int32_t>(parts_.model.tokens.size()); }
  int64_t context_bytes() const override {
    return kContextBytes + static_cast<int64_t>(std::max(raw_.longest(), normalized_.longest()));
  }
  SpecialIds special() const override { return parts_.special; }
  HuggingFaceFiles hugging_face_files() const override { return parts_.files; }
  std::vector<std::string> vocabulary() const override { return {}; }

  int64_t encode_window(const TextWindow& window, const TakeIds& take) const override {
    std::string_view text = window.text;
    if (const size_t good = valid_utf8_prefix(text); good < text.size()) {
      if (window.last || text.size() - good > 3)
        throw DataError(
            "[data] the text is not UTF-8 at byte {} (0x{:02x}). Convert it to UTF-8, or set "
            "data.tokenizer = \"bytes\".",
            window.begin + static_cast<int64_t>(good), static_cast<uint8_t>(text[good]));
      text = text.substr(0, good);  // the end of the window may split the last character
    }
    std::unique_ptr<Work> work = borrow();
    Output out(take, work->ids, window);
    encode_text(text, window, *work, out);
    SLIP_ASSERT(!window.last || out.stopped() || out.done_bytes() == text.size());
    give_back(std::move(work));
    return static_cast<int64_t>(out.done_bytes());
  }

  bool has_text(int32_t id) const override { return !decoded_[static_cast<size_t>(id)].empty(); }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (size_t i = 0; i < ids.size(); ++i) {
      const int32_t id = ids[i];
      if (id < 0 || id >= vocab_size() || !has_text(id))
        throw DataError(
            "[data] id {} at index {} is not in the vocabulary, need one of its {} ids. Use the tokenizer "
            "of the ids.",
            id, i, vocab_size());
      const size_t begin = text.size();
      text += decoded_[static_cast<size_t>(id)];
      if (i == 0 && parts_.decoder.strip_first_marks)
        text.erase(std::remove(text.begin() + static_cast<std::ptrdiff_t>(begin), text.end(), ' '), text.end());
    }
    if (parts_.decoder.strip_first_space && text.starts_with(' ')) text.erase(0, 1);
    return text;
  }

 private:
  std::vector<AddedToken> added(bool normalized) const {
    std::vector<AddedToken> tokens;
    for (AddedToken token : parts_.added) {
      if (token.normalized != normalized) continue;
      if (normalized) token.content = parts_.normalizer.apply(token.content);
      tokens.push_back(std::move(token));
    }
    return tokens;
  }

  std::string text_of(const std::string& token) const {
    if (parts_.decoder.bytes && token.size() == 6 && token.starts_with("<0x") && token.ends_with('>')) {
      unsigned char byte = 0;
      const auto [stop, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
      if (error == std::errc() && stop == token.data() + 5) return std::string(1, static_cast<char>(byte));
    }
    if (!parts_.decoder.spaces) return token;
    std::string text;
    for (size_t at = 0; at < token.size();) {
      const bool mark = std::string_view(token).substr(at).starts_with(kMark);
      text += mark ? ' ' : token[at];
      at += mark ? kMark.size() : 1;
    }
    return text;
  }

  std::unique_ptr<Work> borrow() const {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Work>(parts_.words);
    std::unique_ptr<Work> work = std::move(idle_.back());
    idle_.pop_back();
    return work;
  }
  void give_back(std::unique_ptr<Work> work) const {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(work));
  }

  /// Returns true if a segment gets a prefix. A cut after an added token would hide that from the next segment.
  bool prefixes_segments() const {
    return !parts_.normalizer.prefix.empty() || (!parts_.word_prefix.empty() && !parts_.word_prefix_at_begin_only);
  }

  void encode_text(std::string_view text, const TextWindow& window, Work& work, Output& out) const {
    Span span{.begins = window.first, .begins_text = window.first};
    size_t at = 0, next = 0;
    while (at < text.size()) {
      const AddedTokens::Found found = raw_.find(text, at, next, out.uncut());
      const bool sure = found.token != nullptr && (window.last || raw_.is_sure(found, text.size()));
      const size_t end = sure ? found.begin : window.last ? text.size() : end_of_sure_text(text, at, found, raw_);
      if (end > at) {
        span.last = sure || window.last;
        span.ends_text = window.last && end == text.size();
        encode_segment(text.substr(at, end - at), at, span, work, out);
      }
      if (!sure || out.stopped()) return;
      out.add(found.token->id);
      at = found.end;
      next = found.next;
      const bool ends = window.last && at == text.size();
      if ((!prefixes_segments() || ends) && raw_.can_cut(text, at)) out.cut(at, ends);
      if (out.stopped()) return;
      span = {.begins = true};
    }
  }

  /// Returns the end of the part of text[at ..] in which no added token can begin.
  static size_t end_of_sure_text(std::string_view text, size_t at, const AddedTokens::Found& found,
                                 const AddedTokens& tokens) {
    size_t end = text.size() - std::min(text.size(), tokens.unsure_bytes());
    while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    if (found.token != nullptr) end = std::min(end, found.begin);
    end = std::max(end, at);
    return tokens.any_strips_left() ? at + end_without_spaces(text.substr(at, end - at)) : end;
  }

  /// Encodes a segment between the added tokens of the text before normalization.
  void encode_segment(std::string_view segment, size_t offset, Span span, Work& work, Output& out) const {
    NormalizedText& normalized = work.normalized;
    parts_.normalizer.apply(segment, span.begins, normalized);
    const std::string_view text = normalized.text;
    size_t place = 0;
    PlacesPassed uncut;
    const auto cut = [&](size_t end) {
      if (uncut.holds(end)) return;
      if (end == text.size() && span.last) return out.cut(offset + segment.size(), span.ends_text);
      // Following text could combine with the last character.
      if (end == text.size() && parts_.normalizer.form != NormalForm::none) return;
      if (normalized.same) return out.cut(offset + end, false);
      while (place < normalized.places.size() && normalized.places[place].first < end) ++place;
      if (place < normalized.places.size() && normalized.places[place].first == end)
        out.cut(offset + normalized.places[place].second, false);
    };
    size_t at = 0, next = 0;
    Span part = span;
    while (at < text.size()) {
      const AddedTokens::Found found = normalized_.find(text, at, next, uncut.places);
      const bool sure = found.token != nullptr && (span.last || normalized_.is_sure(found, text.size()));
      const size_t end = sure ? found.begin : span.last ? text.size() : end_of_sure_text(text, at, found, normalized_);
      if (end > at) {
        part.last = sure || span.last;
        encode_words(text.substr(at, end - at), at, part, work, out, cut);
      }
      if (!sure || out.stopped()) return;
      out.add(found.token->id);
      at = found.end;
      next = found.next;
      if ((!prefixes_segments() || (span.ends_text && at == text.size())) && normalized_.can_cut(text, at)) cut(at);
      if (out.stopped()) return;
      part = {.begins = true};
    }
  }

  template <typename Cut>
  void encode_words(std::string_view text, size_t offset, Span span, Work& work, Output& out, const Cut& cut) const {
    size_t added_bytes = 0;
    const bool has_prefix = parts_.mark_spaces ? mark_bytes(text) > 0 : text.starts_with(parts_.word_prefix);
    if (span.begins && !has_prefix && (span.begins_text || !parts_.word_prefix_at_begin_only)) {
      work.prefixed = parts_.word_prefix;
      work.prefixed += text;
      text = work.prefixed;
      added_bytes = parts_.word_prefix.size();
    }
    work.splitter.split(text, span.last, [&](std::string_view word, size_t end) {
      if (!word.empty()) bpe_.encode(word, parts_.mark_spaces, work.bpe, out.ids());
      if (end > 0) cut(offset + end - added_bytes);
      return !out.stopped();
    });
  }

  BpeParts parts_;
  Bpe bpe_;
  AddedTokens raw_, normalized_;
  std::vector<std::string> decoded_;  // by id
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Work>> idle_;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_bpe_tokenizer(BpeParts parts) {
  return std::make_shared<BpeTokenizer>(std::move(parts));
}

}  // namespace slipstream::data

// SPDX-License-Identifier: Apache-2.0
// The tokenizers bytes and chars, and external tokenizers, which are known by name only.

#include "engine/data/tokenizer.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/utf8.h"
#include "engine/data/sidecar.h"

namespace slipstream::data {

namespace {

constexpr int64_t kSidecarBytesMax = 64 << 20;  // all Unicode code points take 16 MB as JSON
constexpr uint32_t kCodePoints = 0x110000;

[[noreturn]] void not_in_vocabulary(int32_t id, size_t index, int32_t vocab_size) {
  throw DataError("[data] id {} at index {} is not in the vocabulary, need 0 to {}. Use the tokenizer of the ids.", id,
                  index, vocab_size - 1);
}

/// The code point at byte `at`; `text` comes from a user and follows `begin` other bytes.
CodePoint checked_code_point(std::string_view text, size_t at, int64_t begin) {
  const CodePoint point = next_code_point(text, at);
  if (point.size_bytes == 0)
    throw DataError(
        "[data] the text is not UTF-8 at byte {} (0x{:02x}). Convert it to UTF-8, or set data.tokenizer = "
        "\"bytes\".",
        begin + static_cast<int64_t>(at), static_cast<uint8_t>(text[at]));
  return point;
}

class BytesTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "bytes"; }
  int32_t vocab_size() const override { return 256; }
  bool ids_are_bytes() const override { return true; }
  void encode_pieces(std::string_view text, const std::function<void(std::span<const int32_t>)>& take,
                     int64_t) const override {
    std::vector<int32_t> ids;
    for (; !text.empty(); text.remove_prefix(ids.size())) {
      ids.resize(std::min(text.size(), kPieceIds));
      std::transform(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(ids.size()), ids.begin(),
                     [](char c) { return static_cast<uint8_t>(c); });
      take(ids);
    }
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text(ids.size(), '\0');
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] > 255) not_in_vocabulary(ids[i], i, 256);
      text[i] = static_cast<char>(static_cast<unsigned char>(ids[i]));
    }
    return text;
  }
  std::vector<std::string> vocabulary() const override { return {}; }
};

class CharsTokenizer final : public Tokenizer {
 public:
  /// `code_points` sorted and distinct, at least one.
  explicit CharsTokenizer(std::vector<uint32_t> code_points)
      : code_points_(std::move(code_points)), id_of_(code_points_.back() + 1, -1) {
    for (size_t id = 0; id < code_points_.size(); ++id) id_of_[code_points_[id]] = static_cast<int32_t>(id);
  }
  std::string name() const override { return "chars"; }
  int32_t vocab_size() const override { return static_cast<int32_t>(code_points_.size()); }
  void encode_pieces(std::string_view text, const std::function<void(std::span<const int32_t>)>& take,
                     int64_t begin) const override {
    std::vector<int32_t> ids;
    for (size_t at = 0; at < text.size();) {
      const CodePoint point = checked_code_point(text, at, begin);
      const int32_t id = point.value < id_of_.size() ? id_of_[point.value] : -1;
      if (id < 0)
        throw DataError(
            "[data] the character {} (U+{:04X}) at byte {} is not among the {} characters of the vocabulary. Remove it "
            "from the text, or build the vocabulary from a text that contains it.",
            files::shown(text.substr(at, static_cast<size_t>(point.size_bytes))), point.value,
            begin + static_cast<int64_t>(at), code_points_.size());
      ids.push_back(id);
      if (ids.size() == kPieceIds) {
        take(ids);
        ids.clear();
      }
      at += static_cast<size_t>(point.size_bytes);
    }
    if (!ids.empty()) take(ids);
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= vocab_size()) not_in_vocabulary(ids[i], i, vocab_size());
      append_code_point(text, code_points_[static_cast<size_t>(ids[i])]);
    }
    return text;
  }
  std::vector<std::string> vocabulary() const override {
    std::vector<std::string> out(code_points_.size());
    for (size_t id = 0; id < out.size(); ++id) append_code_point(out[id], code_points_[id]);
    return out;
  }

 private:
  std::vector<uint32_t> code_points_;
  std::vector<int32_t> id_of_;  // by code point; -1: no id
};

/// An external tokenizer, whose ids can be trained on.
class NamedTokenizer final : public Tokenizer {
 public:
  NamedTokenizer(std::string_view name, int64_t vocab_size)
      : name_(name), vocab_size_(static_cast<int32_t>(vocab_size)) {}
  std::string name() const override { return name_; }
  int32_t vocab_size() const override { return vocab_size_; }
  bool knows_text() const override { return false; }
  void encode_pieces(std::string_view, const std::function<void(std::span<const int32_t>)>&, int64_t) const override {
    throw DataError(
        "[data] the tokenizer {} is known by name only and cannot encode text. Write token shards with a program that "
        "has this tokenizer.",
        files::shown(name_));
  }
  std::string decode(std::span<const int32_t>) const override {
    throw DataError(
        "[data] the tokenizer {} is known by name only and cannot decode ids. Decode them with a program that has this "
        "tokenizer.",
        files::shown(name_));
  }
  std::vector<std::string> vocabulary() const override { return {}; }

 private:
  std::string name_;
  int32_t vocab_size_;
};

std::vector<uint32_t> sorted_code_points(std::span<const ForPieces> texts) {
  std::vector<bool> seen(kCodePoints, false);
  for (const ForPieces& for_pieces : texts)
    for_pieces([&](std::string_view piece, int64_t begin) {
      for (size_t at = 0; at < piece.size();) {
        const CodePoint point = checked_code_point(piece, at, begin);
        seen[point.value] = true;
        at += static_cast<size_t>(point.size_bytes);
      }
    });
  std::vector<uint32_t> out;
  for (uint32_t value = 0; value < kCodePoints; ++value)
    if (seen[value]) out.push_back(value);
  return out;
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  encode_pieces(text, [&](std::span<const int32_t> piece) { ids.insert(ids.end(), piece.begin(), piece.end()); });
  return ids;
}

std::shared_ptr<const Tokenizer> make_tokenizer(std::string_view name, std::span<const ForPieces> texts) {
  if (name == "bytes") return std::make_shared<BytesTokenizer>();
  if (name == "chars") {
    std::vector<uint32_t> code_points = sorted_code_points(texts);
    if (code_points.empty())
      throw DataError(
          "[data] data.tokenizer = \"chars\" needs a text with at least 1 character, got none. Give the path of a "
          "text.");
    return std::make_shared<CharsTokenizer>(std::move(code_points));
  }
  if (name.ends_with(".json"))
    throw ConfigError(
        "[config] data.tokenizer = {} is not yet supported: a tokenizer.json cannot be read. Use \"bytes\" or "
        "\"chars\".",
        files::shown(name));
  throw ConfigError("[config] data.tokenizer = {} is unknown. Use \"bytes\" or \"chars\".", files::shown(name));
}

std::shared_ptr<const Tokenizer> make_tokenizer(std::string_view name, std::string_view text) {
  const ForPieces whole = [&](const TakePiece& take) { take(text, 0); };
  return make_tokenizer(name, std::span(&whole, 1));
}

namespace {

std::shared_ptr<const Tokenizer> restore_chars(std::span<const std::string> vocabulary, std::string_view where) {
  std::vector<uint32_t> code_points;
  for (const std::string& entry : vocabulary) {
    const CodePoint point = entry.empty() ? CodePoint{} : next_code_point(entry, 0);
    if (point.size_bytes == 0 || static_cast<size_t>(point.size_bytes) != entry.size())
      throw DataError("[data] {} maps id {} to the text {}, need one character. Write the file again.", where,
                      code_points.size(), files::shown(entry));
    if (!code_points.empty() && point.value <= code_points.back())
      throw DataError(
          "[data] {} maps id {} to the character {}, which does not follow that of id {}. Characters must be sorted "
          "and distinct. Write the file again.",
          where, code_points.size(), files::shown(entry), code_points.size() - 1);
    code_points.push_back(point.value);
  }
  if (code_points.empty())
    throw DataError("[data] {} lists no characters for the tokenizer \"chars\", need at least 1. Write the file again.",
                    where);
  return std::make_shared<CharsTokenizer>(std::move(code_points));
}

}  // namespace

std::shared_ptr<const Tokenizer> restore_tokenizer(std::string_view name, std::span<const std::string> vocabulary,
                                                   int64_t vocab_size, std::string_view where) {
  if (name != "chars" && !vocabulary.empty())
    throw DataError("[data] {} lists {} entries for the tokenizer {}, need none. Write the file again.", where,
                    vocabulary.size(), files::shown(name));
  std::shared_ptr<const Tokenizer> tokenizer;
  if (name == "bytes")
    tokenizer = std::make_shared<BytesTokenizer>();
  else if (name == "chars")
    tokenizer = restore_chars(vocabulary, where);
  else if (!name.empty() && vocab_size > 0)
    tokenizer = std::make_shared<NamedTokenizer>(name, vocab_size);
  else
    throw DataError(
        "[data] {} names the tokenizer {} without vocab_size, need \"bytes\", \"chars\" or the name and vocab_size of "
        "another tokenizer. Write the file again.",
        where, files::shown(name));
  if (vocab_size != 0 && vocab_size != tokenizer->vocab_size())
    throw DataError("[data] {} has vocab_size = {}, but its tokenizer {} has {}. Write the file again.", where,
                    vocab_size, files::printable(name, 80), tokenizer->vocab_size());
  return tokenizer;
}

std::string write_tokenizer(const Tokenizer& tokenizer) {
  return write_vocabulary_info(
      {.tokenizer = tokenizer.name(), .vocab_size = tokenizer.vocab_size(), .vocabulary = tokenizer.vocabulary()});
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path) {
  const std::string text = files::read_file(path, files::Owner::data, kSidecarBytesMax);
  const std::string where = files::shown(path);
  const VocabularyInfo info = parse_vocabulary_info({.text = text, .where = where, .owner = files::Owner::data});
  return restore_tokenizer(info.tokenizer, info.vocabulary, info.vocab_size, where);
}

}  // namespace slipstream::data

// SPDX-License-Identifier: Apache-2.0
// The tokenizers bytes and chars, external tokenizers, which are known by name only, and the choice among all of them.

#include "engine/data/tokenizers/make_tokenizer.h"

#include <algorithm>
#include <filesystem>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/utf8.h"
#include "engine/data/sidecar.h"
#include "engine/data/tokenizers/tiktoken.h"
#include "engine/data/tokenizers/tokenizer_json.h"
#include "engine/data/tokenizers/write_tokenizer_json.h"

namespace slipstream::data {

namespace {

constexpr int64_t kSidecarBytesMax = 64 << 20;  // all Unicode code points take 16 MB as JSON
constexpr int64_t kTokenizerBytesMax = 256 << 20;
constexpr uint32_t kCodePoints = 0x110000;

[[noreturn]] void not_in_vocabulary(int32_t id, size_t index, int32_t vocab_size) {
  throw DataError("[data] id {} at index {} is not in the vocabulary, need 0 to {}. Use the tokenizer of the ids.", id,
                  index, vocab_size - 1);
}

/// Returns the code point at byte `at`. `text` comes from a user and follows `begin` other bytes.
CodePoint checked_code_point(std::string_view text, size_t at, int64_t begin) {
  const CodePoint point = next_code_point(text, at);
  if (point.size_bytes == 0)
    throw DataError(
        "[data] the text is not UTF-8 at byte {} (0x{:02x}). Convert it to UTF-8, or set data.tokenizer = "
        "\"bytes\".",
        begin + static_cast<int64_t>(at), static_cast<uint8_t>(text[at]));
  return point;
}

/// Returns the bytes at the end of a window that may begin a character of the next window. Pure.
size_t unfinished(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;  // inside a character
    const size_t size = byte < 0xc0 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    return size > back ? back : 0;
  }
  return 0;
}

/// Returns the text of a window up to the requested stop, for texts that can be split between any two characters, and
/// whether the ids reach the end. Pure.
std::pair<std::string_view, bool> up_to_stop(const TextWindow& window) {
  const bool stops = window.stop >= 0 && window.stop <= std::ssize(window.text);
  return {stops ? window.text.substr(0, static_cast<size_t>(window.stop)) : window.text, stops || window.last};
}

class BytesTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "bytes"; }
  int32_t vocab_size() const override { return 256; }
  bool ids_are_bytes() const override { return true; }
  HuggingFaceFiles hugging_face_files() const override { return hugging_face_files_of_bytes(); }
  int64_t encode_window(const TextWindow& window, const TakeIds& take) const override {
    const auto [whole, ends] = up_to_stop(window);
    std::vector<int32_t> ids;
    for (std::string_view text = whole; !text.empty(); text.remove_prefix(ids.size())) {
      ids.resize(std::min(text.size(), kPieceIds));
      if (!ends && ids.size() < kPieceIds) return std::ssize(whole) - std::ssize(text);
      std::transform(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(ids.size()), ids.begin(),
                     [](char c) { return static_cast<uint8_t>(c); });
      take(ids, std::ssize(ids));
    }
    return std::ssize(whole);
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
  /// `code_points` are sorted and distinct, and there is at least one.
  explicit CharsTokenizer(std::vector<uint32_t> code_points)
      : code_points_(std::move(code_points)), id_of_(code_points_.back() + 1, -1) {
    for (size_t id = 0; id < code_points_.size(); ++id) id_of_[code_points_[id]] = static_cast<int32_t>(id);
  }
  std::string name() const override { return "chars"; }
  int32_t vocab_size() const override { return static_cast<int32_t>(code_points_.size()); }
  HuggingFaceFiles hugging_face_files() const override { return hugging_face_files_of_chars(vocabulary()); }
  int64_t encode_window(const TextWindow& window, const TakeIds& take) const override {
    const auto [whole, ends] = up_to_stop(window);
    const std::string_view text = whole.substr(0, whole.size() - (ends ? 0 : unfinished(whole)));
    std::vector<int32_t> ids;
    size_t taken = 0;
    for (size_t at = 0; at < text.size();) {
      const CodePoint point = checked_code_point(text, at, window.begin);
      const int32_t id = point.value < id_of_.size() ? id_of_[point.value] : -1;
      if (id < 0)
        throw DataError(
            "[data] the character {} (U+{:04X}) at byte {} is not among the {} characters of the vocabulary. Remove it "
            "from the text, or build the vocabulary from a text that contains it.",
            files::shown(text.substr(at, static_cast<size_t>(point.size_bytes))), point.value,
            window.begin + static_cast<int64_t>(at), code_points_.size());
      ids.push_back(id);
      at += static_cast<size_t>(point.size_bytes);
      if (ids.size() < kPieceIds && (!ends || at < text.size())) continue;
      take(ids, static_cast<int64_t>(at - taken));
      taken = at;
      ids.clear();
    }
    return static_cast<int64_t>(taken);
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
  std::vector<int32_t> id_of_;  // by code point; -1: it has no id
};

/// An external tokenizer. A model can be trained on its ids, but it cannot encode text.
class NamedTokenizer final : public Tokenizer {
 public:
  NamedTokenizer(std::string_view name, int64_t vocab_size)
      : name_(name), vocab_size_(static_cast<int32_t>(vocab_size)) {}
  std::string name() const override { return name_; }
  int32_t vocab_size() const override { return vocab_size_; }
  bool knows_text() const override { return false; }
  int64_t encode_window(const TextWindow&, const TakeIds&) const override {
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
  encode_window({.text = text},
                [&](std::span<const int32_t> piece, int64_t) { ids.insert(ids.end(), piece.begin(), piece.end()); });
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
  if (names_tokenizer_file(name)) return load_tokenizer_file(std::string(name));
  throw ConfigError(
      "[config] data.tokenizer = {} is unknown. Use \"bytes\", \"chars\", or the path of a folder with a "
      "tokenizer, of a tokenizer.json or of a NAME.tiktoken.",
      files::shown(name));
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

bool names_tokenizer_file(std::string_view name) {
  std::error_code error;
  return name.ends_with(".json") || name.ends_with(".tiktoken") ||
         (name != "bytes" && name != "chars" && std::filesystem::is_directory(name, error));
}

std::shared_ptr<const Tokenizer> load_tokenizer_file(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return load_tokenizer(path);
  const std::string text = files::read_file(path, files::Owner::data, kTokenizerBytesMax);
  const auto beside = [&](const std::filesystem::path& name) {
    return std::filesystem::exists(name, error) ? files::read_file(name, files::Owner::data, kSidecarBytesMax) : "";
  };
  const std::filesystem::path file(path);
  if (file.extension() == ".tiktoken")
    return parse_tiktoken({.text = text,
                           .where = files::shown(path),
                           .stem = file.stem(),
                           .about_text = beside(std::filesystem::path(file).replace_extension(".json"))});
  const std::filesystem::path folder = file.parent_path();
  const std::string config = beside(folder / "tokenizer_config.json"),
                    special_map = beside(folder / "special_tokens_map.json"),
                    added = beside(folder / "added_tokens.json"), model = beside(folder / "config.json");
  return parse_tokenizer_json({.text = text,
                               .where = files::shown(path),
                               .config_text = config,
                               .special_map_text = special_map,
                               .added_tokens_text = added,
                               .model_text = model});
}

HuggingFaceFiles write_tokenizer(const Tokenizer& tokenizer) {
  HuggingFaceFiles files = tokenizer.hugging_face_files();
  files.emplace_back(kTokenizerFile, write_vocabulary_info({.tokenizer = tokenizer.name(),
                                                            .vocab_size = tokenizer.vocab_size(),
                                                            .vocabulary = tokenizer.vocabulary()}));
  return files;
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& folder) {
  const std::string path = folder + "/" + kTokenizerFile, other = folder + "/tokenizer.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    if (std::filesystem::exists(other, error)) return load_tokenizer_file(other);
    throw DataError("[data] {} has no tokenizer: need its {} or tokenizer.json.", files::shown(folder), kTokenizerFile);
  }
  const std::string text = files::read_file(path, files::Owner::data, kSidecarBytesMax);
  const std::string where = files::shown(path);
  const VocabularyInfo info = parse_vocabulary_info({.text = text, .where = where, .owner = files::Owner::data});
  // The ids of a tokenizer file are those of the tokenizer.json beside it.
  if (info.tokenizer.starts_with(kFileTokenizer) && std::filesystem::exists(other, error))
    return load_tokenizer_file(other);
  return restore_tokenizer(info.tokenizer, info.vocabulary, info.vocab_size, where);
}

}  // namespace slipstream::data

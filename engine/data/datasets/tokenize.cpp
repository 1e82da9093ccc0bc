// SPDX-License-Identifier: Apache-2.0
// Reads texts, encodes them and writes their shards.

#include "engine/data/datasets/tokenize.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/hash.h"
#include "engine/data/datasets/document_parts.h"
#include "engine/data/datasets/json_text.h"
#include "engine/data/datasets/shards.h"
#include "engine/data/datasets/text.h"
#include "engine/data/datasets/text_sequence.h"
#include "engine/data/datasets/tokenize_files.h"
#include "engine/data/datasets/tokenize_progress.h"
#include "engine/data/tokenizers/make_tokenizer.h"

namespace slipstream::data {
namespace {

/// Divides ids into shards of equal counts.
class Writer {
 public:
  Writer(const TokenizeOptions& options, TextSequence& texts, std::shared_ptr<const Tokenizer> tokenizer,
         TokenizeProgress progress)
      : options_(options), texts_(texts), tokenizer_(std::move(tokenizer)), progress_(std::move(progress)) {
    std::error_code reported_by_writing;
    std::filesystem::create_directories(files::folder_of(options.out), reported_by_writing);
    if (!tokenizer_->name().starts_with(kFileTokenizer)) return;
    // The shards carry their tokenizer with them.
    const std::filesystem::path folder = options.out + ".tokenizer";
    std::filesystem::create_directories(folder, reported_by_writing);
    for (const auto& [name, bytes] : tokenizer_->hugging_face_files()) files::write_file(folder / name, bytes);
    tokenizer_file_ = (folder.filename() / "tokenizer.json").string();
  }

  /// The following ids belong to a part of a text that begins at `place`.
  void begin_part(int64_t text, DocumentPlace place) {
    if (place.first && begun_) check_skipped();
    begun_ = true;
    text_ = text;
    part_ = place;
    in_part_ = 0;
  }
  /// Appends ids, but skips those that earlier shards have.
  void append(std::span<const int32_t> ids, bool begins_document) {
    const int64_t skipped = std::min(progress_.skip, std::ssize(ids));
    progress_.skip -= skipped;
    in_part_ += skipped;
    ids = ids.subspan(static_cast<size_t>(skipped));
    while (!ids.empty()) {
      if (!writer_) {
        name_ = name_of_shard(options_, std::ssize(progress_.shards));
        writer_ = std::make_unique<ShardWriter>(name_, tokenizer_, tokenizer_file_);
      }
      if (begins_document && skipped == 0) writer_->begin_document();
      begins_document = false;
      const int64_t room = options_.shard_tokens > 0 ? options_.shard_tokens - writer_->count() : std::ssize(ids);
      const int64_t taken = std::min(std::ssize(ids), room);
      writer_->append(ids.first(static_cast<size_t>(taken)));
      ids = ids.subspan(static_cast<size_t>(taken));
      in_part_ += taken;
      if (writer_->count() == options_.shard_tokens) finish_shard();
    }
  }
  void count(const DocumentCount& documents) { progress_.documents.add(documents); }
  const DocumentCount& documents() const { return progress_.documents; }

  /// `problem` describes the first line that is no document; empty if there is none.
  std::vector<TokenizeSummary::Shard> finish(const std::string& problem, int64_t& removed) {
    check_skipped();
    if (writer_) finish_shard();
    if (progress_.shards.empty())
      throw DataError("[data] {} has no tokens, need at least one document with text. {}",
                      files::shown(options_.texts.front()), problem.empty() ? "Use another file." : problem);
    removed = remove_earlier_shards(options_, std::ssize(progress_.shards));
    std::error_code ignored;
    std::filesystem::remove(progress_path(options_), ignored);
    return std::move(progress_.shards);
  }

 private:
  /// Checks that the document has at least the tokens of it that earlier shards have.
  void check_skipped() const {
    if (progress_.skip == 0) return;
    throw DataError("[data] {} skips {} more tokens than its unfinished document has. Start again without --resume.",
                    files::shown(progress_path(options_)), progress_.skip);
  }

  void finish_shard() {
    std::string hash = writer_->finish();
    progress_.shards.push_back({.path = name_ + ".bin",
                                .count = writer_->count(),
                                .size_bytes = writer_->size_bytes(),
                                .hash = std::move(hash),
                                .hash_beside = {}});
    writer_.reset();
    if (options_.shard_tokens == 0) return;
    progress_.text = text_;
    progress_.part = part_;
    progress_.skip = in_part_;
    progress_.text_hash = texts_.hash();
    progress_.text_bytes = texts_.hashed_bytes();
    write_progress(options_, progress_);
    progress_.skip = 0;
  }

  const TokenizeOptions& options_;
  TextSequence& texts_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  TokenizeProgress progress_;
  std::string tokenizer_file_, name_;
  std::unique_ptr<ShardWriter> writer_;
  int64_t text_ = 0;  // the index of the text of the part
  DocumentPlace part_;
  bool begun_ = false;
  int64_t in_part_ = 0;  // the tokens of the part so far
};

/// Returns the tokenizer's name, and a hash of its characters if it takes them from the text.
std::string identity_of(const Tokenizer& tokenizer) {
  const std::vector<std::string> vocabulary = tokenizer.vocabulary();
  Xxh3 hash;
  for (const std::string& text : vocabulary) hash.update(text.data(), std::ssize(text));
  return vocabulary.empty() ? tokenizer.name() : tokenizer.name() + " " + hash.hex();
}

/// Describes everything that the ids depend on except the bytes of the texts.
std::string made_of(const TokenizeOptions& options, const TextSequence& texts, const Tokenizer& tokenizer,
                    int32_t end_of_text) {
  Xxh3 names;
  for (const TextSequence::Text& text : texts.texts()) names.update(text.path.data(), std::ssize(text.path) + 1);
  const std::string first = texts.texts().front().path;
  return fmt::format("{} of {} bytes, {}, format {}, key {}, separator {}, {} tokens per shard, end {}",
                     texts.texts().size() == 1 ? first : fmt::format("{} texts {}", texts.texts().size(), names.hex()),
                     texts.file_bytes(), identity_of(tokenizer), static_cast<int>(options.format),
                     files::shown(options.text_key), files::shown(options.separator), options.shard_tokens,
                     end_of_text);
}

/// Checks that the shards do not replace a text or the tokenizer.
void check_names(const TokenizeOptions& options, const TextSequence& texts) {
  // A text has at most as many ids as bytes, plus one end for each document.
  int64_t shards = std::numeric_limits<int64_t>::max();
  const auto is_plain = [](const TextSequence::Text& text) { return text.is_plain_file; };
  if (options.shard_tokens > 0 && std::all_of(texts.texts().begin(), texts.texts().end(), is_plain))
    shards = 2 * texts.file_bytes() / options.shard_tokens + 1;
  const auto check = [&](const std::string& input, const char* what) {
    if (const std::string written = written_as(options, shards, input); !written.empty())
      throw ConfigError(
          "[data] {} would be overwritten: it is the {}, and the command writes {}. Give the shards another name.",
          files::shown(input), what, files::shown(written));
  };
  for (const TextSequence::Text& text : texts.texts()) check(text.path, "text");
  check(options.tokenizer, "tokenizer");
}

/// Returns the texts for a tokenizer that takes its vocabulary from them.
ForPieces pieces_of(const TokenizeOptions& options) {
  return [&options](const TakePiece& take) {
    for (const std::string& path : options.texts) {
      if (names_standard_input(path))
        throw ConfigError(
            "[data] data.tokenizer = \"chars\" reads a text twice, but standard input can be read once. Save it to a "
            "file "
            "first.");
      TextInput input(path, options.format);
      const ForPieces pieces = [&](const TakePiece& next) {
        for_pieces_of([&](char* out, int64_t size_bytes) { return input.read(out, size_bytes); }, next);
      };
      try {
        input.format() == DataFormat::jsonl ? for_json_texts(pieces, path, options.text_key, take) : pieces(take);
      } catch (const DataError& error) {
        throw_with_path(error, path);
      }
    }
  };
}

TokenizeSummary tokenize_files(const TokenizeOptions& options) {
  TextSequence texts(options.texts, options.format, options.shard_tokens > 0);
  check_names(options, texts);
  const auto is_json = [](const TextSequence::Text& text) { return text.format == DataFormat::jsonl; };
  const bool json = std::any_of(texts.texts().begin(), texts.texts().end(), is_json);
  if (json && !options.separator.empty())
    throw ConfigError("[tokenize] --separator does not apply to JSON lines: each line is a document. Remove it.");
  const bool many = json || !options.separator.empty() || texts.texts().size() > 1;
  const ForPieces pieces = pieces_of(options);
  const std::shared_ptr<const Tokenizer> tokenizer = make_tokenizer(options.tokenizer, std::span(&pieces, 1));
  const int32_t end_of_text = many && options.end_of_text ? tokenizer->special().end_of_text : -1;
  if (many && options.end_of_text && end_of_text < 0)
    throw ConfigError(
        "[data] {} has documents, but the tokenizer {} has no end-of-text token to put after each. Give "
        "--no-end-of-text to join them without one, or a tokenizer whose eos_token is a token.",
        files::shown(texts.texts().front().path), tokenizer->name());
  TokenizeProgress progress{
      .made_of = made_of(options, texts, *tokenizer, end_of_text), .documents = {}, .text_hash = {}, .shards = {}};
  if (options.resume) read_progress(options, texts, progress);
  remove_abandoned(options);
  const bool goes_on = !progress.shards.empty();
  const int64_t first_text = progress.text;
  DocumentPlace place = progress.part;
  DocumentCount counted = progress.documents;
  Writer writer(options, texts, tokenizer, std::move(progress));
  const files::ReadBytes read = [&](char* out, int64_t size_bytes) { return texts.read(out, size_bytes); };
  for (int64_t index = first_text; index < std::ssize(texts.texts()); ++index) {
    const TextSequence::Text& text = texts.texts()[static_cast<size_t>(index)];
    if (index > first_text || !goes_on) texts.open(index);
    const auto take = [&](const DocumentPart& part, int64_t done) {
      texts.take(done);
      writer.begin_part(index, {part.begin, part.first});
      const bool begins = part.first && many;
      writer.append(part.ids, begins);
      if (part.last && end_of_text >= 0 && !part.skipped)
        writer.append(std::span(&end_of_text, 1), begins && part.ids.empty());
      if (part.last && many) writer.count({part.skipped ? 0 : 1, part.skipped ? 1 : 0, part.replaced});
      if (options.progress) options.progress(texts.file_bytes_done(), texts.file_bytes());
    };
    try {
      counted.add(encode_documents(read, *tokenizer,
                                   {.path = text.path,
                                    .json_lines = text.format == DataFormat::jsonl,
                                    .text_key = options.text_key,
                                    .separator = options.separator,
                                    .takes_any_bytes = options.format == DataFormat::text,
                                    .threads = options.threads},
                                   std::exchange(place, {}), take));
    } catch (const DataError& error) {
      throw_with_path(error, text.path);
    }
  }
  TokenizeSummary summary{
      .tokenizer = tokenizer->name(),
      .vocab_size = tokenizer->vocab_size(),
      .text_bytes = texts.text_bytes(),
      .documents = writer.documents().documents(),
      .shards = {},
      .notes = counted.notes(options.texts.size() == 1 ? files::shown(options.texts.front()) : "the texts")};
  summary.shards = writer.finish(counted.first_problem(), summary.removed);
  for (const TokenizeSummary::Shard& shard : summary.shards) summary.count += shard.count;
  return summary;
}

}  // namespace

TokenizeSummary tokenize(const TokenizeOptions& options) {
  SLIP_ASSERT(options.shard_tokens >= 0 && options.threads >= 1 && !options.texts.empty());
  TokenizeOptions expanded = options;
  expanded.texts.clear();
  for (const std::string& text : options.texts)
    for (std::string& path : matching_files(text)) expanded.texts.push_back(std::move(path));
  return tokenize_files(expanded);
}

}  // namespace slipstream::data

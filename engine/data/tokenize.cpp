// SPDX-License-Identifier: Apache-2.0
// Passes over a text, encodes it and writes its shards.

#include "engine/data/tokenize.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/data/document_parts.h"
#include "engine/data/hash.h"
#include "engine/data/json_text.h"
#include "engine/data/make_tokenizer.h"
#include "engine/data/shards.h"
#include "engine/data/text.h"
#include "engine/data/tokenize_files.h"
#include "engine/data/tokenize_progress.h"

namespace slipstream::data {
namespace {

/// Divides ids into shards of equal counts.
class Writer {
 public:
  Writer(const TokenizeOptions& options, TextHash& text_hash, std::shared_ptr<const Tokenizer> tokenizer,
         TokenizeProgress progress)
      : options_(options), text_hash_(text_hash), tokenizer_(std::move(tokenizer)), progress_(std::move(progress)) {
    std::error_code reported_by_writing;
    std::filesystem::create_directories(files::folder_of(options.out), reported_by_writing);
    if (!tokenizer_->name().starts_with(kFileTokenizer)) return;
    // The shards carry their tokenizer.
    const std::filesystem::path folder = options.out + ".tokenizer";
    std::filesystem::create_directories(folder, reported_by_writing);
    for (const auto& [name, bytes] : tokenizer_->hugging_face_files()) files::write_file(folder / name, bytes);
    tokenizer_file_ = (folder.filename() / "tokenizer.json").string();
  }

  /// The ids that follow belong to a part that begins at `place` and ends before byte `end`.
  void begin_part(DocumentPlace place, int64_t end) {
    if (place.first && begun_) check_skipped();
    begun_ = true;
    part_ = place;
    in_part_ = 0;
    end_ = end;
  }
  /// Passes over ids that earlier shards have.
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
  void end_document() { ++progress_.documents; }

  std::vector<TokenizeSummary::Shard> finish(int64_t& documents, int64_t& removed) {
    check_skipped();
    if (writer_) finish_shard();
    removed = remove_earlier_shards(options_, std::ssize(progress_.shards));
    documents = progress_.documents;
    std::error_code ignored;
    std::filesystem::remove(progress_path(options_), ignored);
    return std::move(progress_.shards);
  }

 private:
  /// A document has at least the tokens that earlier shards have of it.
  void check_skipped() const {
    if (progress_.skip == 0) return;
    throw DataError(
        "[data] {} skips {} tokens more than the document has in which it goes on. Start again without --resume.",
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
    progress_.part = part_;
    progress_.skip = in_part_;
    progress_.text_hash = text_hash_.up_to(end_);
    progress_.text_bytes = text_hash_.size_bytes();
    write_progress(options_, progress_);
    progress_.skip = 0;
  }

  const TokenizeOptions& options_;
  TextHash& text_hash_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  TokenizeProgress progress_;
  std::string tokenizer_file_, name_;
  std::unique_ptr<ShardWriter> writer_;
  DocumentPlace part_;
  bool begun_ = false;
  int64_t in_part_ = 0;  // tokens of the part so far
  int64_t end_ = 0;      // of the part, in bytes of the text
};

/// The tokenizer's name, and a hash of its characters if it has them from the text.
std::string identity_of(const Tokenizer& tokenizer) {
  const std::vector<std::string> vocabulary = tokenizer.vocabulary();
  Xxh3 hash;
  for (const std::string& text : vocabulary) hash.update(text.data(), std::ssize(text));
  return vocabulary.empty() ? tokenizer.name() : tokenizer.name() + " " + hash.hex();
}

/// The shards must not replace the text or the tokenizer.
void check_names(const TokenizeOptions& options, const TextFile& text) {
  const auto check = [&](const std::string& written) {
    if (std::error_code error; !std::filesystem::exists(written, error)) return;
    for (const std::string& input : {options.text, options.tokenizer}) {
      std::error_code error;
      if (std::filesystem::equivalent(input, written, error))
        throw ConfigError(
            "[data] {} would be overwritten: it is the {}, and the command writes {}. Give the shards another name.",
            files::shown(input), input == options.text ? "text" : "tokenizer", files::shown(written));
    }
  };
  check(progress_path(options));
  // A text has at most as many ids as bytes, and an end of each document.
  const int64_t shards = options.shard_tokens > 0 ? 2 * text.size_bytes() / options.shard_tokens + 1 : 1;
  for (int64_t shard = 0; shard < std::min<int64_t>(shards, 100000); ++shard)
    for (const char* end : {".bin", ".json", ".documents"}) check(name_of_shard(options, shard) + end);
}

}  // namespace

TokenizeSummary tokenize(const TokenizeOptions& options) {
  SLIP_ASSERT(options.shard_tokens >= 0 && options.threads >= 1);
  const TextFile text(options.text);
  check_names(options, text);
  const bool json_lines = options.text.ends_with(".jsonl"), many = json_lines || !options.separator.empty();
  const ForPieces pieces = [&](const TakePiece& take) {
    if (json_lines)
      for_json_texts(text, take);
    else
      text.for_pieces(take);
  };
  const std::shared_ptr<const Tokenizer> tokenizer = make_tokenizer(options.tokenizer, std::span(&pieces, 1));
  const int32_t end_of_text = many && options.end_of_text ? tokenizer->special().end_of_text : -1;
  if (many && options.end_of_text && end_of_text < 0)
    throw ConfigError(
        "[data] {} has documents, but the tokenizer {} has no end-of-text token to put behind each. Give "
        "--no-end-of-text to join them without one, or a tokenizer whose eos_token is a token.",
        files::shown(options.text), tokenizer->name());
  const std::string made_of =
      fmt::format("{} of {} bytes, {}, separator {}, {} tokens per shard, end {}", options.text, text.size_bytes(),
                  identity_of(*tokenizer), files::shown(options.separator), options.shard_tokens, end_of_text);
  TokenizeProgress progress{.made_of = made_of, .text_hash = {}, .shards = {}};
  TextHash text_hash(text.file());
  if (options.resume) read_progress(options, text_hash, progress);
  remove_abandoned(options);
  const DocumentPlace begin = progress.part;
  Writer writer(options, text_hash, tokenizer, std::move(progress));
  const auto take = [&](const DocumentPart& part, int64_t done) {
    writer.begin_part({part.begin, part.first}, done);
    const bool begins = part.first && many;
    writer.append(part.ids, begins);
    if (part.last && end_of_text >= 0) writer.append(std::span(&end_of_text, 1), begins && part.ids.empty());
    if (part.last && many) writer.end_document();
    if (options.progress) options.progress(done, text.size_bytes());
  };
  try {
    encode_documents(text, *tokenizer, {json_lines, options.separator, options.threads}, begin, take);
  } catch (const DataError& error) {
    throw_with_path(error, options.text);
  }
  TokenizeSummary summary{.tokenizer = tokenizer->name(),
                          .vocab_size = tokenizer->vocab_size(),
                          .text_bytes = text.size_bytes(),
                          .shards = {}};
  summary.shards = writer.finish(summary.documents, summary.removed);
  for (const TokenizeSummary::Shard& shard : summary.shards) summary.count += shard.count;
  return summary;
}

}  // namespace slipstream::data

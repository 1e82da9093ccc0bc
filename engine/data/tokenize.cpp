// SPDX-License-Identifier: Apache-2.0
// Passes over a text, encodes it and writes its shards.

#include "engine/data/tokenize.h"

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "engine/base/check.h"
#include "engine/base/document.h"
#include "engine/base/files.h"
#include "engine/data/document_parts.h"
#include "engine/data/json_text.h"
#include "engine/data/make_tokenizer.h"
#include "engine/data/shards.h"
#include "engine/data/text.h"

namespace slipstream::data {
namespace {

constexpr int64_t kProgressBytesMax = 64 << 20;

/// Where the next shard begins: OUT.progress.json, while shards are being written.
struct Progress {
  DocumentPlace part;   // that the next token belongs to
  int64_t skip = 0;     // tokens of that part in earlier shards
  std::string made_of;  // all that the ids depend on
  std::vector<TokenizeSummary::Shard> shards;
  int64_t documents = 0;
};

std::string progress_path(const TokenizeOptions& options) { return options.out + ".progress.json"; }

void write_progress(const TokenizeOptions& options, const Progress& progress) {
  Json root = Json::object();
  root["made_of"] = Json(progress.made_of);
  root["byte"] = Json(progress.part.byte);
  root["begins_document"] = Json(progress.part.first ? 1 : 0);
  root["skip"] = Json(progress.skip);
  root["documents"] = Json(progress.documents);
  root["shards"] = Json::array();
  for (const TokenizeSummary::Shard& shard : progress.shards) {
    Json one = Json::object();
    one["path"] = Json(shard.path);
    one["count"] = Json(shard.count);
    one["size_bytes"] = Json(shard.size_bytes);
    one["hash"] = Json(shard.hash);
    root["shards"].push_back(std::move(one));
  }
  files::write_file(progress_path(options), root.dump(1) + "\n");
}

Progress read_progress(const TokenizeOptions& options, const std::string& made_of) {
  const std::string path = progress_path(options);
  if (std::error_code error; !std::filesystem::exists(path, error)) return {.made_of = made_of, .shards = {}};
  const std::string text = files::read_file(path, files::Owner::data, kProgressBytesMax);
  const Document document{.text = text, .where = files::shown(path)};
  const Json root = parse_object(document);
  const Fields fields(document, root, "the outermost object");
  fields.allow_only({"made_of", "byte", "begins_document", "skip", "documents", "shards"});
  Progress progress{.part = {static_cast<int64_t>(fields.natural("byte")), fields.natural("begins_document") > 0},
                    .skip = static_cast<int64_t>(fields.natural("skip")),
                    .made_of = fields.string("made_of"),
                    .shards = {},
                    .documents = static_cast<int64_t>(fields.natural("documents"))};
  if (progress.made_of != made_of)
    throw DataError(
        "[data] {} belongs to another command: {} instead of {}. Give the same text and options, or start "
        "again without --resume.",
        files::shown(path), files::printable(progress.made_of, 300), files::printable(made_of, 300));
  for (const Json& shard : root.at("shards").as_array()) {
    const Fields one(document, shard, "a shard");
    progress.shards.push_back({.path = one.string("path"),
                               .count = static_cast<int64_t>(one.natural("count")),
                               .size_bytes = static_cast<int64_t>(one.natural("size_bytes")),
                               .hash = one.string("hash")});
  }
  return progress;
}

/// Does the command write a file of this name?
bool writes(std::string_view name, std::string_view out) {
  for (const std::string_view end : {".progress.json", ".bin", ".json", ".documents"}) {
    if (!name.ends_with(end)) continue;
    name.remove_suffix(end.size());
    if (!name.starts_with(out)) return false;
    name.remove_prefix(out.size());
    return name.empty() || (name.starts_with('-') && name.find_first_not_of("0123456789", 1) == std::string_view::npos);
  }
  return false;
}

/// Removes what killed commands of this host with the same OUT left half written.
void remove_abandoned(const TokenizeOptions& options) {
  const std::string out = std::filesystem::path(options.out).filename();
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(files::folder_of(options.out), error)) {
    const std::string name = entry.path().filename();
    const size_t at = name.rfind(".tmp-");
    if (at == std::string::npos || !writes(std::string_view(name).substr(0, at), out)) continue;
    pid_t writer = 0;
    const char *const from = name.data() + at + 5, *const end = name.data() + name.size();
    const auto [stop, failed] = std::from_chars(from, end, writer);
    if (failed != std::errc() || stop != end || writer <= 0) continue;
    const bool ended = ::kill(writer, 0) != 0 && errno == ESRCH;
    if (ended) std::filesystem::remove(entry.path(), error);
  }
}

/// Divides ids into shards of equal counts.
class Writer {
 public:
  Writer(const TokenizeOptions& options, std::shared_ptr<const Tokenizer> tokenizer, Progress progress)
      : options_(options), tokenizer_(std::move(tokenizer)), progress_(std::move(progress)) {
    std::error_code reported_by_writing;
    std::filesystem::create_directories(files::folder_of(options.out), reported_by_writing);
    if (!tokenizer_->name().starts_with(kFileTokenizer)) return;
    // The shards carry their tokenizer.
    const std::filesystem::path folder = options.out + ".tokenizer";
    std::filesystem::create_directories(folder, reported_by_writing);
    for (const auto& [name, bytes] : tokenizer_->hugging_face_files()) files::write_file(folder / name, bytes);
    tokenizer_file_ = (folder.filename() / "tokenizer.json").string();
  }

  /// The ids that follow belong to a part that begins here.
  void begin_part(DocumentPlace place) {
    part_ = place;
    in_part_ = 0;
  }
  /// Passes over ids that earlier shards have.
  void append(std::span<const int32_t> ids, bool begins_document) {
    const int64_t skipped = std::min(progress_.skip, std::ssize(ids));
    progress_.skip -= skipped;
    in_part_ += skipped;
    ids = ids.subspan(static_cast<size_t>(skipped));
    while (!ids.empty()) {
      if (!writer_) {
        name_ = name_of_shard(progress_.shards.size());
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
    if (writer_) finish_shard();
    removed = remove_later_shards();
    documents = progress_.documents;
    std::error_code ignored;
    std::filesystem::remove(progress_path(options_), ignored);
    return std::move(progress_.shards);
  }

  /// A pattern would read shards of an earlier command with more shards, too. Returns their number.
  int64_t remove_later_shards() const {
    int64_t removed = 0;
    for (size_t number = progress_.shards.size(); options_.shard_tokens > 0; ++number, ++removed) {
      const std::string name = name_of_shard(number);
      std::error_code error;
      if (!std::filesystem::remove(name + ".bin", error)) break;
      for (const char* end : {".json", ".documents"}) std::filesystem::remove(name + end, error);
    }
    return removed;
  }

 private:
  std::string name_of_shard(size_t number) const {
    return options_.shard_tokens > 0 ? fmt::format("{}-{:05}", options_.out, number) : options_.out;
  }

  void finish_shard() {
    std::string hash = writer_->finish();
    progress_.shards.push_back({.path = name_ + ".bin",
                                .count = writer_->count(),
                                .size_bytes = writer_->size_bytes(),
                                .hash = std::move(hash)});
    writer_.reset();
    if (options_.shard_tokens == 0) return;
    progress_.part = part_;
    progress_.skip = in_part_;
    write_progress(options_, progress_);
    progress_.skip = 0;
  }

  const TokenizeOptions& options_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  Progress progress_;
  std::string tokenizer_file_, name_;
  std::unique_ptr<ShardWriter> writer_;
  DocumentPlace part_;
  int64_t in_part_ = 0;  // tokens of the part so far
};

/// The shards must not replace the text.
void check_names(const TokenizeOptions& options, const TextFile& text) {
  // A text has at most as many ids as bytes, and an end of each document.
  const int64_t shards = options.shard_tokens > 0 ? 2 * text.size_bytes() / options.shard_tokens + 1 : 1;
  for (int64_t shard = 0; shard < std::min<int64_t>(shards, 100000); ++shard)
    for (const char* end : {".bin", ".json"}) {
      const std::string name =
          options.shard_tokens > 0 ? fmt::format("{}-{:05}{}", options.out, shard, end) : options.out + end;
      std::error_code error;
      if (std::filesystem::equivalent(options.text, name, error))
        throw ConfigError(
            "[data] {} would be overwritten: it is the text, and the command writes {}. Give the shards another name.",
            files::shown(options.text), files::shown(name));
    }
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
  const std::string made_of =
      fmt::format("{} of {} bytes, {}, separator {}, {} tokens per shard, end {}", options.text, text.size_bytes(),
                  tokenizer->name(), files::shown(options.separator), options.shard_tokens, end_of_text);
  Progress progress = options.resume ? read_progress(options, made_of) : Progress{.made_of = made_of, .shards = {}};
  if (progress.part.byte > text.size_bytes())
    throw DataError("[data] {} goes on at byte {} of a text of {}. Start again without --resume.",
                    files::shown(progress_path(options)), progress.part.byte, text.size_bytes());
  remove_abandoned(options);
  const DocumentPlace begin = progress.part;
  Writer writer(options, tokenizer, std::move(progress));
  const auto take = [&](const DocumentPart& part, int64_t done) {
    writer.begin_part({part.begin, part.first});
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

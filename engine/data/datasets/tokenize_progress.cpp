// SPDX-License-Identifier: Apache-2.0
// Writes OUT.progress.json, reads it, and compares it with the texts and the shards.

#include "engine/data/datasets/tokenize_progress.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>

#include "engine/base/check.h"
#include "engine/base/document.h"
#include "engine/data/datasets/tokenize_files.h"

namespace slipstream::data {
namespace {

constexpr int64_t kProgressBytesMax = 64 << 20;

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

std::string hash_of_files(const std::string& name, std::initializer_list<const char*> ends) {
  Xxh3 hash;
  for (const char* end : ends) {
    if (!exists(name + end)) continue;
    const files::InputFile file(name + end, files::Owner::data);
    hash.update(file, 0, file.size_bytes());
  }
  return hash.hex();
}

std::string hash_beside(const std::string& name) { return hash_of_files(name, {".json", ".documents"}); }

/// Hashes an object without its member "hash".
std::string hash_of(const Json& root) {
  Json::Object members = root.as_object();
  std::erase_if(members, [](const Json::Member& member) { return member.first == "hash"; });
  const std::string text = Json(std::move(members)).dump();
  return xxh3_128_hex(text.data(), std::ssize(text));
}

/// The last member is the hash of the others.
Json json_of(const TokenizeProgress& progress) {
  Json root = Json::object();
  root["made_of"] = Json(progress.made_of);
  root["text"] = Json(progress.text);
  root["byte"] = Json(progress.part.byte);
  root["begins_document"] = Json(progress.part.first ? 1 : 0);
  root["skip"] = Json(progress.skip);
  root["documents"] = Json(progress.documents.documents());
  root["skipped"] = Json(progress.documents.skipped());
  root["replaced"] = Json(progress.documents.replaced());
  root["text_bytes"] = Json(progress.text_bytes);
  root["text_hash"] = Json(progress.text_hash);
  root["shards"] = Json::array();
  for (const TokenizeSummary::Shard& shard : progress.shards) {
    Json one = Json::object();
    one["count"] = Json(shard.count);
    one["size_bytes"] = Json(shard.size_bytes);
    one["hash"] = Json(shard.hash);
    one["hash_beside"] = Json(shard.hash_beside);
    root["shards"].push_back(std::move(one));
  }
  root["hash"] = Json(hash_of(root));
  return root;
}

/// Returns the difference between a shard and its record, or an empty text if there is none.
std::string difference(const std::string& name, const TokenizeSummary::Shard& shard) {
  if (!exists(shard.path)) return "it is missing";
  const int64_t size_bytes = files::InputFile(shard.path, files::Owner::data).size_bytes();
  if (size_bytes != shard.size_bytes) return fmt::format("it has {} bytes, need {}", size_bytes, shard.size_bytes);
  if (const std::string hash = hash_of_files(name, {".bin"}); hash != shard.hash)
    return fmt::format("it has the hash {}, need {}", hash, shard.hash);
  return hash_beside(name) == shard.hash_beside ? "" : "its .json or .documents was changed";
}

}  // namespace

void write_progress(const TokenizeOptions& options, TokenizeProgress& progress) {
  TokenizeSummary::Shard& last = progress.shards.back();
  last.hash_beside = hash_beside(name_of_shard(options, std::ssize(progress.shards) - 1));
  files::write_file(progress_path(options), json_of(progress).dump(1) + "\n");
}

void read_progress(const TokenizeOptions& options, TextSequence& texts, TokenizeProgress& progress) {
  const std::string path = progress_path(options), made_of = progress.made_of;
  if (!exists(path)) return;
  const std::string text = files::read_file(path, files::Owner::data, kProgressBytesMax);
  const Document document{.text = text, .where = files::shown(path)};
  const Json root = parse_object(document);
  const Fields fields(document, root, "the outermost object");
  if (!fields.has("hash") || fields.string("hash") != hash_of(root))
    throw DataError("[data] {} was changed, or another version wrote it. Start again without --resume.",
                    files::shown(path));
  if (fields.string("made_of") != made_of)
    throw DataError(
        "[data] {} belongs to another command: {} instead of {}. Give the same text and options, or start "
        "again without --resume.",
        files::shown(path), files::printable(fields.string("made_of"), 300), files::printable(made_of, 300));
  const auto number = [&](const char* key) { return static_cast<int64_t>(fields.natural(key)); };
  progress = {.made_of = made_of,
              .text = number("text"),
              .part = {number("byte"), number("begins_document") > 0},
              .skip = number("skip"),
              .documents = {number("documents"), number("skipped"), number("replaced")},
              .text_bytes = number("text_bytes"),
              .text_hash = fields.string("text_hash"),
              .shards = {}};
  for (const Json& shard : root.at("shards").as_array()) {
    const Fields one(document, shard, "a shard");
    progress.shards.push_back({.path = name_of_shard(options, std::ssize(progress.shards)) + ".bin",
                               .count = static_cast<int64_t>(one.natural("count")),
                               .size_bytes = static_cast<int64_t>(one.natural("size_bytes")),
                               .hash = one.string("hash"),
                               .hash_beside = one.string("hash_beside")});
  }
  if (!texts.go_to(progress.text, progress.part.byte, progress.text_bytes))
    throw DataError(
        "[data] {} continues at byte {} of text {}, but the texts end after {} bytes. Start again without --resume.",
        files::shown(path), progress.part.byte, progress.text, texts.text_bytes());
  if (const std::string hash = texts.hash(); hash != progress.text_hash)
    throw DataError(
        "[data] the first {} bytes of {} have the hash {}, need {}: the complete shards come from another text. Start "
        "again without --resume.",
        progress.text_bytes, files::shown(options.texts.front()), hash, progress.text_hash);
  for (const TokenizeSummary::Shard& shard : progress.shards)
    if (const std::string found = difference(shard.path.substr(0, shard.path.size() - 4), shard); !found.empty())
      throw DataError("[data] the shard {} is not the one that {} records: {}. Start again without --resume.",
                      files::shown(shard.path), files::shown(path), found);
}

}  // namespace slipstream::data

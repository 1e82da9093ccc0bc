// SPDX-License-Identifier: Apache-2.0
// Reads and writes shards.

#include "engine/data/datasets/shards.h"
#include "engine/data/tokenizers/make_tokenizer.h"

#include <glob.h>

#include <algorithm>
#include <bit>
#include <filesystem>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/hash.h"
#include "engine/data/datasets/raw_tokens.h"
#include "engine/data/sidecar.h"

namespace slipstream::data {

namespace {

static_assert(std::endian::native == std::endian::little,
              "shards and weights are little-endian and read without swaps");

constexpr int64_t kSidecarBytesMax = 64 << 20;
constexpr int32_t kNarrowVocabMax = 65536;

/// Opens one NAME.bin whose sidecar has been read.
std::shared_ptr<const RawTokens> open_shard(const std::string& path, const TokenShardInfo& info, ShardCheck check,
                                            int64_t& resident_bytes) {
  files::InputFile file(path, files::Owner::data);
  const int64_t width_bytes = info.dtype == "uint16" ? 2 : 4, size_bytes = file.size_bytes();
  if (size_bytes == 0 || info.count == 0)
    throw DataError(
        "[data] the shard {} is empty ({} bytes; its sidecar records {} tokens). Write it again with slipstream "
        "tokenize.",
        files::shown(path), size_bytes, info.count);
  const int64_t count = size_bytes / width_bytes;
  if (size_bytes % width_bytes != 0 || static_cast<uint64_t>(count) != info.count)
    throw DataError(
        "[data] the shard {} has {} bytes, but its sidecar records {} tokens of {} bytes. It was truncated or "
        "replaced. Write it again with slipstream tokenize.",
        files::shown(path), size_bytes, info.count, width_bytes);
  const bool whole = check == ShardCheck::whole;
  std::shared_ptr<const DocumentIndex> documents;
  if (info.documents > 0) {
    documents = open_document_index(path.substr(0, path.size() - 4) + ".documents", info.documents, count, whole);
    resident_bytes += documents->resident_bytes();
  }
  auto shard = std::make_shared<RawTokens>(std::move(file),
                                           RawTokensOptions{.noun = "shard",
                                                            .advice = "Write it again with slipstream tokenize.",
                                                            .type = width_bytes == 2 ? IdType::u16 : IdType::u32,
                                                            .count = count,
                                                            .vocab_size = info.vocab_size,
                                                            .documents = std::move(documents)});
  if (!whole) return shard;
  if (const std::string hash = shard->hash(true); hash != info.hash)
    throw DataError(
        "[data] the shard {} has the hash {}, but its sidecar records {}. It was changed after it was written. Write "
        "it again with slipstream tokenize.",
        files::shown(path), hash, info.hash);
  return shard;
}

TokenShardInfo read_info(const std::string& path) {
  const std::string sidecar = path.substr(0, path.size() - 4) + ".json";
  if (std::error_code error; !std::filesystem::exists(sidecar, error) && !error)
    throw DataError(
        "[data] the shard {} has no sidecar {}, which describes its ids (docs/how-to/token-shards.md). Put the sidecar "
        "beside the shard, or set data.format for a file of another program.",
        files::shown(path), files::shown(sidecar));
  const std::string text = files::read_file(sidecar, files::Owner::data, kSidecarBytesMax);
  return parse_token_shard_info({.text = text, .where = files::shown(sidecar), .owner = files::Owner::data});
}

/// Returns the tokenizer of the file beside the shard if there is one. Otherwise the tokenizer is known by name only.
std::shared_ptr<const Tokenizer> tokenizer_of(const TokenShardInfo& info, const std::string& path) {
  const std::string file = files::folder_of(path) + "/" + info.tokenizer_file;
  if (std::error_code error; info.tokenizer_file.empty() || !std::filesystem::exists(file, error))
    return restore_tokenizer(info.tokenizer, info.vocabulary, info.vocab_size, "the sidecar of " + files::shown(path));
  std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer_file(file);
  if (tokenizer->name() != info.tokenizer || tokenizer->vocab_size() != info.vocab_size)
    throw DataError(
        "[data] {} is {} with {} ids, but the shard {} was made with {} of {} ids. Restore the file or remove it.",
        files::shown(file), tokenizer->name(), tokenizer->vocab_size(), files::shown(path),
        files::printable(info.tokenizer, 80), info.vocab_size);
  return tokenizer;
}

}  // namespace

std::vector<std::string> matching_files(const std::string& pattern) {
  if (pattern.find_first_of("*?") == std::string::npos) return {pattern};
  glob_t found{};
  const int result = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<std::string> paths;
  if (result == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (paths.empty())
    throw DataError("[data] no file matches {}. Check the pattern, or write shards with slipstream tokenize.",
                    files::shown(pattern));
  return paths;
}

bool names_shards(std::string_view path) { return path.ends_with(".bin"); }

Shards open_shards(const std::string& path, ShardCheck check) {
  std::vector<std::shared_ptr<const TokenSource>> parts;
  Shards shards;
  TokenShardInfo first;
  std::string first_path;
  Xxh3 sidecars_hash;
  for (const std::string& one : matching_files(path)) {
    if (!names_shards(one))
      throw DataError("[data] {} is not a shard: its name does not end in .bin.", files::shown(one));
    const files::InputFile exists(one,
                                  files::Owner::data);  // reports a missing shard before a missing sidecar
    const TokenShardInfo info = read_info(one);
    const std::string sidecar = write_token_shard_info(info);
    sidecars_hash.update(sidecar.data(), std::ssize(sidecar));
    if (!shards.tokenizer) {
      first = info;
      first_path = one;
      shards.tokenizer = tokenizer_of(info, one);
    } else if (info.tokenizer != first.tokenizer || info.vocabulary != first.vocabulary ||
               info.vocab_size != first.vocab_size) {
      throw DataError(
          "[data] the shards {} ({}, {} ids) and {} ({}, {} ids) come from different tokenizers. Write both with the "
          "same one.",
          files::shown(first_path), files::printable(first.tokenizer, 80), first.vocab_size, files::shown(one),
          files::printable(info.tokenizer, 80), info.vocab_size);
    }
    parts.push_back(open_shard(one, info, check, shards.resident_bytes));
  }
  shards.hash = sidecars_hash.hex();
  shards.tokens = chain(std::move(parts));
  return shards;
}

struct ShardWriter::State {
  State(const std::string& shard_name, std::shared_ptr<const Tokenizer> maker, std::string maker_file)
      : name(shard_name),
        tokenizer(std::move(maker)),
        tokenizer_file(std::move(maker_file)),
        file(shard_name + ".bin") {}

  std::string name;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string tokenizer_file;
  std::vector<uint64_t> documents;
  files::OutputFile file;
  Xxh3 hash;
  int64_t count = 0;
  std::vector<uint16_t> narrow;
};

ShardWriter::ShardWriter(const std::string& name, std::shared_ptr<const Tokenizer> tokenizer,
                         std::string tokenizer_file)
    : state_(std::make_unique<State>(name, std::move(tokenizer), std::move(tokenizer_file))) {}

ShardWriter::~ShardWriter() = default;

int64_t ShardWriter::count() const { return state_->count; }

int64_t ShardWriter::size_bytes() const {
  return state_->count * (state_->tokenizer->vocab_size() <= kNarrowVocabMax ? 2 : 4);
}

void ShardWriter::append(std::span<const int32_t> ids) {
  const int32_t vocab_size = state_->tokenizer->vocab_size();
  SLIP_ASSERT(std::all_of(ids.begin(), ids.end(), [&](int32_t id) { return id >= 0 && id < vocab_size; }));
  const void* bytes = ids.data();
  auto size_bytes = static_cast<int64_t>(ids.size_bytes());
  if (vocab_size <= kNarrowVocabMax) {
    state_->narrow.assign(ids.begin(), ids.end());
    bytes = state_->narrow.data();
    size_bytes /= 2;
  }
  state_->file.write(bytes, size_bytes);
  state_->hash.update(bytes, size_bytes);
  state_->count += static_cast<int64_t>(ids.size());
}

void ShardWriter::begin_document() { state_->documents.push_back(static_cast<uint64_t>(state_->count)); }

std::string ShardWriter::finish() {
  if (state_->count == 0)
    throw DataError("[data] the shard {} would be empty, need at least 1 token. Use a text that is not empty.",
                    files::shown(state_->name));
  const TokenShardInfo info{.dtype = state_->tokenizer->vocab_size() <= kNarrowVocabMax ? "uint16" : "uint32",
                            .vocab_size = state_->tokenizer->vocab_size(),
                            .count = static_cast<uint64_t>(state_->count),
                            .hash = state_->hash.hex(),
                            .tokenizer = state_->tokenizer->name(),
                            .vocabulary = state_->tokenizer->vocabulary(),
                            .tokenizer_file = state_->tokenizer_file,
                            .documents = state_->documents.size()};
  state_->file.commit();
  const std::string documents = state_->name + ".documents";
  std::error_code ignored;
  if (state_->documents.empty())
    std::filesystem::remove(documents, ignored);
  else
    files::write_file(documents,
                      {reinterpret_cast<const char*>(state_->documents.data()), 8 * state_->documents.size()});
  files::write_file(state_->name + ".json", write_token_shard_info(info));
  return info.hash;
}

}  // namespace slipstream::data

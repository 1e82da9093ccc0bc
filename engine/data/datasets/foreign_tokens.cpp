// SPDX-License-Identifier: Apache-2.0
// Recognizes the formats of other programs and opens their token files.

#include "engine/data/datasets/foreign_tokens.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/hash.h"
#include "engine/data/datasets/containers.h"
#include "engine/data/datasets/megatron.h"
#include "engine/data/datasets/raw_tokens.h"
#include "engine/data/datasets/text_input.h"
#include "engine/data/datasets/token_source.h"
#include "engine/data/tokenizers/make_tokenizer.h"

namespace slipstream::data {
namespace {

constexpr int64_t kLlmCHeaderBytes = 1024;
constexpr int32_t kLlmCGpt2 = 20240520, kLlmCLlama3 = 20240801;
constexpr int64_t kGpt2Vocab = 50257, kLlama3Vocab = 128256;
constexpr int32_t kGpt2EndOfText = 50256, kLlama3BeginOfText = 128000;

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

/// Returns the first bytes of a file, or nothing if there is no file.
std::string first_bytes(const std::string& path) {
  if (std::error_code error; !std::filesystem::is_regular_file(path, error)) return "";
  const files::InputFile file(path, files::Owner::data);
  std::string bytes(static_cast<size_t>(std::min<int64_t>(file.size_bytes(), kFirstBytes)), '\0');
  file.read(0, bytes.data(), std::ssize(bytes));
  return bytes;
}

std::string stem_of(const std::string& path) {
  return path.ends_with(".bin") || path.ends_with(".idx") ? path.substr(0, path.size() - 4) : path;
}

struct Opened {
  std::shared_ptr<const TokenSource> tokens;
  std::string hash;
  std::string name;  // the name of the tokenizer
  int64_t vocab_size = 0;
  int64_t resident_bytes = 0;
};

int64_t vocab_of(const ForeignOptions& options, int64_t usual, const std::string& path) {
  if (options.tokenizer) return options.tokenizer->vocab_size();
  if (usual > 0) return usual;
  if (options.vocab_size > 0) return options.vocab_size;
  throw ConfigError(
      "[data] {} does not record its vocabulary. Set model.vocab_size, or data.tokenizer to a tokenizer file.",
      files::shown(path));
}

Opened open_llm_c(const std::string& path, const ForeignOptions& options) {
  files::InputFile file(path, files::Owner::data);
  int32_t header[3] = {};
  if (file.size_bytes() < kLlmCHeaderBytes)
    throw DataError("[data] {} has {} bytes, need the header of llm.c of {}. Write it again with llm.c.",
                    files::shown(path), file.size_bytes(), kLlmCHeaderBytes);
  file.read(0, header, sizeof header);
  const bool gpt2 = header[0] == kLlmCGpt2 && header[1] == 1, llama3 = header[0] == kLlmCLlama3 && header[1] == 7;
  if (!gpt2 && !llama3)
    throw DataError(
        "[data] {} begins with the numbers {} and {}, need {} and 1 (GPT-2) or {} and 7 (Llama 3) of llm.c. Set "
        "data.format to the file's format.",
        files::shown(path), header[0], header[1], kLlmCGpt2, kLlmCLlama3);
  const IdType type = gpt2 ? IdType::u16 : IdType::u32;
  const int64_t bytes = file.size_bytes() - kLlmCHeaderBytes, count = header[2];
  if (count < 1 || bytes != count * size_of(type))
    throw DataError(
        "[data] {} has {} bytes after its header, which records {} tokens of {} bytes. It was truncated or replaced. "
        "Write it again with llm.c.",
        files::shown(path), bytes, count, size_of(type));
  Opened opened{.tokens = nullptr, .hash = "", .name = gpt2 ? "gpt2" : "llama3"};
  opened.vocab_size = vocab_of(options, gpt2 ? kGpt2Vocab : kLlama3Vocab, path);
  const auto tokens =
      std::make_shared<RawTokens>(std::move(file), RawTokensOptions{.advice = "Write it again with llm.c.",
                                                                    .type = type,
                                                                    .offset_bytes = kLlmCHeaderBytes,
                                                                    .count = count,
                                                                    .vocab_size = opened.vocab_size,
                                                                    .documents = nullptr});
  opened.hash = tokens->hash(options.check == ShardCheck::whole);
  opened.tokens = documents_by_id(tokens, gpt2 ? kGpt2EndOfText : kLlama3BeginOfText, true);
  return opened;
}

Opened open_nanogpt(const std::string& path, const ForeignOptions& options) {
  files::InputFile file(path, files::Owner::data);
  const IdType type = options.format == DataFormat::nanogpt ? IdType::u16 : IdType::u32;
  const int64_t bytes = file.size_bytes();
  if (bytes == 0 || bytes % size_of(type) != 0)
    throw DataError("[data] {} has {} bytes, need {} for each of at least 1 token of nanoGPT. Write it again.",
                    files::shown(path), bytes, size_of(type));
  Opened opened{.tokens = nullptr, .hash = "", .name = "nanogpt", .vocab_size = vocab_of(options, 0, path)};
  const auto tokens = std::make_shared<RawTokens>(
      std::move(file), RawTokensOptions{.advice = "Set data.format (\"nanogpt\" for ids of 2 bytes, \"nanogpt-uint32\" "
                                                  "for 4; others must be converted) and model.vocab_size to those of "
                                                  "the file.",
                                        .type = type,
                                        .records_width = false,
                                        .count = bytes / size_of(type),
                                        .vocab_size = opened.vocab_size,
                                        .documents = nullptr});
  opened.hash = tokens->hash(options.check == ShardCheck::whole);
  opened.tokens = tokens;
  if (const int32_t end = options.tokenizer ? options.tokenizer->special().end_of_text : -1; end >= 0)
    opened.tokens = documents_by_id(tokens, end, false);
  return opened;
}

Opened open_megatron(const std::string& path, const ForeignOptions& options) {
  const std::string stem = stem_of(path);
  MegatronIndex index = read_megatron_index(stem + ".idx", stem + ".bin");
  Opened opened{.tokens = nullptr, .hash = "", .name = "megatron", .vocab_size = vocab_of(options, 0, path)};
  opened.resident_bytes = index.documents->resident_bytes();
  const auto tokens = std::make_shared<RawTokens>(
      files::InputFile(stem + ".bin", files::Owner::data),
      RawTokensOptions{.advice = "Set model.vocab_size to that of its tokenizer, or write it again with Megatron-LM.",
                       .type = index.type,
                       .count = index.count,
                       .vocab_size = opened.vocab_size,
                       .documents = index.documents});
  opened.hash = index.hash + tokens->hash(options.check == ShardCheck::whole);
  opened.tokens = tokens;
  return opened;
}

}  // namespace

DataFormat format_of(const std::string& path, DataFormat named) {
  if (named != DataFormat::automatic) return named;
  if (names_standard_input(path)) return DataFormat::text;
  std::string one = path;
  if (path.find_first_of("*?") != std::string::npos) try {
      one = matching_files(path).front();
    } catch (const DataError&) {  // opening the path reports the error
    }
  if (one.ends_with(".idx") || (!one.ends_with(".bin") && !exists(one) && exists(one + ".idx")))
    return DataFormat::megatron;
  if (!one.ends_with(".bin")) return DataFormat::text;
  if (exists(stem_of(one) + ".json")) return DataFormat::slipstream;
  if (exists(stem_of(one) + ".idx")) return DataFormat::megatron;
  const std::string first = first_bytes(one);
  int32_t magic = 0;
  if (first.size() >= sizeof magic) std::memcpy(&magic, first.data(), sizeof magic);
  if (magic == kLlmCGpt2 || magic == kLlmCLlama3) return DataFormat::llm_c;
  return container_of(first, one).empty() ? DataFormat::slipstream : DataFormat::text;
}

Shards open_foreign(const std::string& path, const ForeignOptions& options) {
  Shards shards;
  std::vector<std::shared_ptr<const TokenSource>> parts;
  Opened first;
  std::string first_path;
  Xxh3 hash;
  for (const std::string& one : matching_files(path)) {
    Opened opened = options.format == DataFormat::llm_c      ? open_llm_c(one, options)
                    : options.format == DataFormat::megatron ? open_megatron(one, options)
                                                             : open_nanogpt(one, options);
    if (parts.empty()) {
      first = opened;
      first_path = one;
    } else if (opened.name != first.name) {
      throw DataError("[data] {} has ids of {}, but {} of {}. Give files of one tokenizer.", files::shown(first_path),
                      first.name, files::shown(one), opened.name);
    }
    hash.update(opened.hash.data(), std::ssize(opened.hash));
    shards.resident_bytes += opened.resident_bytes;
    parts.push_back(std::move(opened.tokens));
  }
  shards.tokenizer = options.tokenizer ? options.tokenizer
                                       : restore_tokenizer(first.name, {}, first.vocab_size, files::shown(first_path));
  shards.tokens = chain(std::move(parts));
  shards.hash = hash.hex();
  return shards;
}

}  // namespace slipstream::data

// SPDX-License-Identifier: Apache-2.0
// Derives merges from ranks: two tokens merge into the token of their joined bytes, at that token's rank.

#include "engine/data/tokenizers/tiktoken.h"

#include <algorithm>
#include <charconv>

#include "engine/base/check.h"
#include "engine/base/document.h"
#include "engine/base/hash.h"
#include "engine/data/tokenizers/bpe_tokenizer.h"
#include "engine/data/tokenizers/byte_alphabet.h"
#include "engine/data/tokenizers/tokenizer_json.h"
#include "engine/data/tokenizers/write_tokenizer_json.h"

namespace slipstream::data {
namespace {

constexpr int32_t kIdsMax = 1 << 24;
constexpr size_t kTokenBytesMax = 1024;  // limits the work, because every token is split at every position

struct Known {
  std::string_view name;
  std::string_view pattern;
  std::vector<std::pair<std::string, int32_t>> special;
};

constexpr std::string_view kWords =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+\z|)"
    R"(\s*[\r\n]|\s+(?!\S)|\s)";
constexpr std::string_view kCasedWords =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

const std::vector<Known>& known_files() {
  static const std::vector<Known> files = {
      {"gpt2", kGpt2Pattern, {{"<|endoftext|>", 50256}}},
      {"r50k_base", kGpt2Pattern, {{"<|endoftext|>", 50256}}},
      {"p50k_base", kGpt2Pattern, {{"<|endoftext|>", 50256}}},
      {"cl100k_base",
       kWords,
       {{"<|endoftext|>", 100257},
        {"<|fim_prefix|>", 100258},
        {"<|fim_middle|>", 100259},
        {"<|fim_suffix|>", 100260},
        {"<|endofprompt|>", 100276}}},
      {"o200k_base", kCasedWords, {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}},
  };
  return files;
}

[[noreturn]] void refuse(const TiktokenFile& file, int64_t line, const std::string& problem) {
  throw DataError("[data] {}: line {} {}. Restore the rank file.", file.where, line, problem);
}

/// Returns false if `text` is not base64.
bool decode_base64(std::string_view text, std::string& out) {
  if (text.empty() || text.size() % 4 != 0) return false;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    uint32_t value = 0;
    if (c >= 'A' && c <= 'Z')
      value = static_cast<uint32_t>(c - 'A');
    else if (c >= 'a' && c <= 'z')
      value = static_cast<uint32_t>(c - 'a') + 26;
    else if (c >= '0' && c <= '9')
      value = static_cast<uint32_t>(c - '0') + 52;
    else if (c == '+' || c == '/')
      value = c == '+' ? 62 : 63;
    else if (i < text.size() - padding)
      return false;
    bits = bits << 6 | value;
    if (i % 4 != 3) continue;
    for (int shift = 16; shift >= 0; shift -= 8) out += static_cast<char>(static_cast<unsigned char>(bits >> shift));
    bits = 0;
  }
  out.resize(out.size() - padding);
  return true;
}

/// Returns the rank and the bytes of every line.
std::vector<std::pair<int32_t, std::string>> lines_of(const TiktokenFile& file) {
  std::vector<std::pair<int32_t, std::string>> lines;
  std::string_view rest = file.text;
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    std::string token;
    if (space == std::string_view::npos || !decode_base64(line.substr(0, space), token))
      refuse(file, number, fmt::format("= {} does not begin with base64 and a space", files::shown(line)));
    const std::string_view digits = line.substr(space + 1);
    int32_t rank = -1;
    const auto [behind, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (error != std::errc() || behind != digits.data() + digits.size() || rank < 0 || rank >= kIdsMax)
      refuse(file, number, fmt::format("has the rank {}, need 0 to {}", files::shown(digits), kIdsMax - 1));
    if (token.size() > kTokenBytesMax)
      refuse(file, number, fmt::format("has a token of {} bytes, need at most {}", token.size(), kTokenBytesMax));
    lines.emplace_back(rank, std::move(token));
  }
  if (lines.empty()) refuse(file, 1, "has no token");
  return lines;
}

Known about_of(const TiktokenFile& file, std::string& pattern) {
  if (file.about_text.empty()) {
    for (const Known& known : known_files())
      if (known.name == file.stem) return known;
    throw DataError(
        "[data] {} does not define the pattern of its words. Put {}.json beside it: {{\"pattern\": \"..\", "
        "\"special_tokens\": {{\"..\": id}}}} (docs/how-to/token-shards.md).",
        file.where, file.stem);
  }
  const Document document{.text = file.about_text, .where = "the JSON beside " + file.where};
  const Json root = parse_object(document);
  const Fields fields(document, root, "the outermost object");
  fields.allow_only({"pattern", "special_tokens"});
  pattern = fields.string("pattern");
  Known about{.name = file.stem, .pattern = pattern, .special = {}};
  if (!fields.has("special_tokens")) return about;
  const Json& special = root.at("special_tokens");
  const Fields tokens(document, special, "\"special_tokens\"");
  for (const auto& [content, id] : special.as_object()) {
    const uint64_t value = tokens.natural(content);
    if (content.empty() || value >= kIdsMax)
      tokens.fail(
          fmt::format("has the id {} for {}, need a text and 0 to {}", value, files::shown(content), kIdsMax - 1));
    about.special.emplace_back(content, static_cast<int32_t>(value));
  }
  return about;
}

/// Sets the tokens by id. Every unused id takes memory, so there may be no more of them than tokens.
void set_tokens(const TiktokenFile& file, const Known& about, std::vector<std::pair<int32_t, std::string>> lines,
                BpeParts& parts) {
  int32_t most = 0;
  for (const auto& [rank, token] : lines) most = std::max(most, rank);
  for (const auto& [content, id] : about.special) most = std::max(most, id);
  const int64_t tokens = std::ssize(lines) + std::ssize(about.special);
  if (most > 2 * tokens + 1024)
    throw DataError("[data] {} has the id {} among {} tokens, need at most {}. Restore the rank file.", file.where,
                    most, tokens, 2 * tokens + 1024);
  std::vector<std::string>& by_id = parts.model.tokens;
  by_id.resize(static_cast<size_t>(most) + 1);
  const auto put = [&](int32_t id, const std::string& token) {
    if (!by_id[static_cast<size_t>(id)].empty())
      throw DataError("[data] {} has the id {} twice. Restore the rank file.", file.where, id);
    by_id[static_cast<size_t>(id)] = token;
  };
  for (const auto& [rank, token] : lines) put(rank, token);
  for (const auto& [content, id] : about.special) {
    put(id, content);
    parts.added.push_back({.id = id, .content = content, .normalized = false, .special = true});
    if (content == "<|endoftext|>" || content == "<|end_of_text|>") parts.special.end_of_text = id;
    if (content == "<|begin_of_text|>") parts.special.begin_of_text = id;
  }
}

}  // namespace

std::shared_ptr<const Tokenizer> parse_tiktoken(const TiktokenFile& file) {
  std::string own_pattern;
  const Known about = about_of(file, own_pattern);
  BpeParts parts;
  std::vector<std::pair<int32_t, std::string>> lines = lines_of(file);
  set_tokens(file, about, lines, parts);
  BpeModel& model = parts.model;
  model.whole_words = true;
  for (const auto& [rank, token] : lines) {
    const std::string& kept = model.tokens[static_cast<size_t>(rank)];
    if (!model.word_ids.emplace(kept, rank).second)
      throw DataError("[data] {} has the token {} twice. Restore the rank file.", file.where, files::shown(token));
    if (kept.size() == 1) model.byte_ids[static_cast<unsigned char>(kept[0])] = rank;
  }
  for (int byte = 0; byte < 256; ++byte)
    if (model.byte_ids[static_cast<size_t>(byte)] < 0)
      throw DataError("[data] {} lacks the byte 0x{:02x}, need a token for each of the 256. Restore the rank file.",
                      file.where, byte);
  std::sort(lines.begin(), lines.end());
  for (const auto& [rank, token] : lines) {
    const std::string_view whole = token;
    for (size_t cut = 1; cut < whole.size(); ++cut) {
      const auto left = model.word_ids.find(whole.substr(0, cut)), right = model.word_ids.find(whole.substr(cut));
      if (left != model.word_ids.end() && right != model.word_ids.end())
        model.merges.push_back({left->second, right->second, rank, rank});
    }
  }
  // In Rust, $ is the end of the text, as \z is everywhere.
  std::string pattern(about.pattern);
  if (pattern.ends_with('$') && !pattern.ends_with("\\$")) pattern.replace(pattern.size() - 1, 1, "\\z");
  for (size_t at = 0; (at = pattern.find("$|", at)) != std::string::npos; at += 2)
    if (at == 0 || pattern[at - 1] != '\\') pattern.replace(at, 1, "\\z");
  const std::string where = file.about_text.empty() ? file.where : fmt::format("{}.json: pattern", file.stem);
  parts.words.rules.push_back({Pattern(pattern, where), WordRule::Keep::all});
  if (has_possessive_interval(pattern))
    throw DataError(
        "[data] {} is the pattern {}: {{..}}+ is not supported, because libraries disagree on it. Write "
        "(?>..{{..}}) instead.",
        where, files::shown(pattern));
  parts.files = hugging_face_files_of(parts);
  const std::string& json = parts.files.front().second;
  parts.name = std::string(kFileTokenizer) + xxh3_128_hex(json.data(), std::ssize(json));
  return make_bpe_tokenizer(std::move(parts));
}

}  // namespace slipstream::data

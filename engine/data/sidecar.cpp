// SPDX-License-Identifier: Apache-2.0
// Converts the JSON text of sidecars to structs and back.

#include "engine/data/sidecar.h"

#include <limits>

#include "engine/base/check.h"

namespace slipstream::data {

namespace {

void add_vocabulary(Json& object, const std::vector<std::string>& vocabulary) {
  for (const std::string& text : vocabulary) object["vocabulary"].push_back(Json(text));
}

int64_t vocab_size_of(const Fields& fields) {
  const uint64_t vocab_size = fields.natural("vocab_size");
  if (vocab_size < 1 || vocab_size > std::numeric_limits<int32_t>::max())
    fields.fail(fmt::format("has vocab_size = {}, need 1 to {}", vocab_size, std::numeric_limits<int32_t>::max()));
  return static_cast<int64_t>(vocab_size);
}

}  // namespace

std::string write_token_shard_info(const TokenShardInfo& info) {
  Json object = Json::object();
  object["dtype"] = Json(info.dtype);
  object["vocab_size"] = Json(info.vocab_size);
  object["count"] = Json(info.count);
  object["hash"] = Json(info.hash);
  object["tokenizer"] = Json(info.tokenizer);
  add_vocabulary(object, info.vocabulary);
  if (!info.tokenizer_file.empty()) object["tokenizer_file"] = Json(info.tokenizer_file);
  if (info.documents > 0) object["documents"] = Json(info.documents);
  return object.dump(2) + "\n";
}

TokenShardInfo parse_token_shard_info(const Document& document) {
  const Json root = parse_object(document);
  const Fields fields(document, root, "the outermost object");
  fields.allow_only({"dtype", "vocab_size", "count", "hash", "tokenizer", "vocabulary", "tokenizer_file", "documents"});
  TokenShardInfo info{.dtype = fields.string("dtype"),
                      .vocab_size = vocab_size_of(fields),
                      .count = fields.natural("count"),
                      .hash = fields.string("hash"),
                      .tokenizer = fields.string("tokenizer"),
                      .vocabulary = {}};
  if (fields.has("vocabulary")) info.vocabulary = fields.strings("vocabulary");
  if (fields.has("tokenizer_file")) info.tokenizer_file = fields.string("tokenizer_file");
  if (fields.has("documents")) info.documents = fields.natural("documents");
  if (info.tokenizer_file.starts_with('/') || info.tokenizer_file.find("..") != std::string::npos)
    fields.fail(
        fmt::format("has tokenizer_file = {}, need a path inside its folder", files::shown(info.tokenizer_file)));
  if (info.dtype != "uint16" && info.dtype != "uint32")
    fields.fail(fmt::format("has dtype = {}, need \"uint16\" or \"uint32\"", files::shown(info.dtype)));
  if (info.hash.size() != 32 || info.hash.find_first_not_of("0123456789abcdef") != std::string::npos)
    fields.fail(fmt::format("has hash = {}, need 32 lowercase hexadecimal digits", files::shown(info.hash)));
  return info;
}

std::string write_vocabulary_info(const VocabularyInfo& info) {
  Json object = Json::object();
  object["tokenizer"] = Json(info.tokenizer);
  if (info.vocab_size > 0) object["vocab_size"] = Json(info.vocab_size);
  add_vocabulary(object, info.vocabulary);
  return object.dump(2) + "\n";
}

VocabularyInfo parse_vocabulary_info(const Document& document) {
  const Json root = parse_object(document);
  const Fields fields(document, root, "the outermost object");
  fields.allow_only({"tokenizer", "vocab_size", "vocabulary"});
  VocabularyInfo info{.tokenizer = fields.string("tokenizer"), .vocab_size = 0, .vocabulary = {}};
  if (fields.has("vocab_size")) info.vocab_size = vocab_size_of(fields);
  if (fields.has("vocabulary")) info.vocabulary = fields.strings("vocabulary");
  return info;
}

}  // namespace slipstream::data

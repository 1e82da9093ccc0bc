// SPDX-License-Identifier: Apache-2.0
// Adds the tokens of the other files in the order in which the library adds them.

#include "engine/data/tokenizers/merge_tokenizer.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <vector>

#include "engine/data/tokenizers/tokenizer_node.h"

namespace slipstream::data {
namespace {

/// The keys have the order of the library.
constexpr std::string_view kNamed[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};
constexpr std::string_view kFlags[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
constexpr const char *kDecoder = "added_tokens_decoder", *kAdded = "added_tokens";

Json parse_file(std::string_view text, const std::string& where) {
  if (text.empty()) return {};
  Json file;
  try {
    file = Json::parse(text, where, JsonNumbers::python);
  } catch (const DataError& error) {
    throw DataError("[data] {} Restore the file.", error.what());
  }
  if (!file.is_object()) throw DataError("[data] {} is no JSON object. Restore the file.", where);
  return file;
}

/// Returns the text of a token, which is a string or an object with one. Null: it is neither.
const std::string* content_of(const Json& token) {
  const Json* text = token.is_object() ? token.find("content") : &token;
  return text != nullptr && text->is_string() && !text->as_string().empty() ? &text->as_string() : nullptr;
}

class Merge {
 public:
  Merge(Json tokenizer, const FilesBeside& beside, const std::string& where)
      : where_(where), config_where_("tokenizer_config.json beside " + where) {
    merged_.tokenizer = std::move(tokenizer);
    merged_.config = parse_file(beside.config, config_where_);
    special_map_ = parse_file(beside.special_map, "special_tokens_map.json beside " + where);
    added_file_ = parse_file(beside.added_tokens, "added_tokens.json beside " + where);
    model_ = parse_file(beside.model, "config.json beside " + where);
  }

  MergedTokenizer merge() {
    if (!index_tokens()) return std::move(merged_);
    const Json* decoder = merged_.config.is_object() ? merged_.config.find(kDecoder) : nullptr;
    const bool has_decoder = decoder != nullptr && decoder->is_object();
    if (has_decoder)
      add_numbered(*decoder);
    else
      take_special_map();
    if (!has_decoder && !added_file_.is_null()) add_file();
    if (merged_.config.is_object()) add_named();
    take_end_of_model();
    if (merged_.added) merged_.tokenizer[kAdded] = Json(std::move(entries_));
    return std::move(merged_);
  }

 private:
  /// Returns false if the document is no tokenizer.
  bool index_tokens() {
    const Json* model = merged_.tokenizer.is_object() ? merged_.tokenizer.find("model") : nullptr;
    const Json* vocab = model != nullptr && model->is_object() ? model->find("vocab") : nullptr;
    if (vocab == nullptr || !vocab->is_object()) return false;
    for (const auto& [token, id] : vocab->as_object())
      if (id.is_int()) ids_.emplace(token, id.as_int());
    next_ = static_cast<int64_t>(vocab->as_object().size());
    const Json* added = merged_.tokenizer.find(kAdded);
    if (added == nullptr || added->is_null()) return true;
    if (!added->is_array()) return false;
    entries_ = added->as_array();
    for (size_t i = 0; i < entries_.size(); ++i) {
      const Json* id = entries_[i].is_object() ? entries_[i].find("id") : nullptr;
      if (id == nullptr || !id->is_int() || content_of(entries_[i]) == nullptr) return false;
      ids_.emplace(*content_of(entries_[i]), id->as_int());
      entry_of_.emplace(*content_of(entries_[i]), i);
      next_ = std::max(next_, id->as_int() + 1);
    }
    return true;
  }

  TokenizerNode node(const Json& value, std::string path) const { return {value, std::move(path), config_where_}; }

  /// Returns the flags of a token. Missing flags get the defaults of the library.
  Json entry(int64_t id, const std::string& content, const Json& token, bool special) const {
    Json made(Json::Object{{"id", Json(id)}, {"content", Json(content)}});
    const auto flag = [&](std::string_view key, bool absent) {
      const Json* value = token.is_object() ? token.find(key) : nullptr;
      return value == nullptr ? absent : node(*value, fmt::format("{}.{}", content, key)).boolean(absent);
    };
    special = special || flag("special", false);
    for (const std::string_view key : kFlags)
      made[key] = key == "special" ? special : flag(key, key == "normalized" && !special);
    return made;
  }

  void add(Json made) {
    merged_.added = true;
    const std::string content = made.at("content").as_string();
    const int64_t id = made.at("id").as_int();
    ids_.emplace(content, id);
    next_ = std::max(next_, id + 1);
    const auto [known, fresh] = entry_of_.emplace(content, entries_.size());
    if (fresh)
      entries_.push_back(std::move(made));
    else
      entries_[known->second] = std::move(made);
  }

  /// The library identifies such a token by its text and gives it this id, even if the file gives it another one.
  void add_with_id(const TokenizerNode& source, int64_t id, const std::string& content, const Json& token,
                   bool special) {
    const auto known = ids_.find(content);
    const int64_t right = known != ids_.end() ? known->second : next_;
    if (id != right)
      source.fail(fmt::format(
          "gives the token {} the id {}, but {} {}", files::shown(content), id,
          known != ids_.end() ? "tokenizer.json has it as" : "the next free id of tokenizer.json is", right));
    Json made = entry(id, content, token, special);
    const auto at = entry_of_.find(content);
    if (at != entry_of_.end() && entry(id, content, entries_[at->second], false) == made) return;
    add(std::move(made));
  }

  void add_numbered(const Json& decoder) {
    std::map<int64_t, const Json*> by_id;
    for (const auto& [key, token] : decoder.as_object()) {
      const bool digits = !key.empty() && key.size() <= 9 &&
                          std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
      const TokenizerNode source = node(token, fmt::format("{}.{}", kDecoder, files::printable(key, 40)));
      if (!digits || content_of(token) == nullptr || !token.is_object()) source.fail("is no id with a token");
      by_id[std::stoll(key)] = &token;
    }
    for (const auto& [id, token] : by_id)
      add_with_id(node(*token, fmt::format("{}.{}", kDecoder, id)), id, *content_of(*token), *token, false);
  }

  void take_special_map() {
    if (special_map_.is_null()) return;
    if (merged_.config.is_null()) merged_.config = Json::object();
    for (const auto& [key, value] : special_map_.as_object())
      if (!value.is_null() && (merged_.config.find(key) == nullptr || merged_.config.at(key) != value)) {
        merged_.config[key] = value;
        merged_.named = true;
      }
  }

  void add_file() {
    std::map<int64_t, std::string> by_id;
    for (const auto& [content, id] : added_file_.as_object())
      by_id[TokenizerNode(id, files::printable(content, 40), "added_tokens.json beside " + where_).id()] = content;
    for (const auto& [id, content] : by_id) {
      if (entry_of_.contains(content) && ids_.at(content) == id) continue;
      const Json number(id);
      const std::string where = "added_tokens.json beside " + where_;
      const TokenizerNode source(number, files::printable(content, 40), where);
      add_with_id(source, id, content, {}, is_named(content));
    }
  }

  bool is_named(const std::string& content) const {
    const auto has = [&](const Json* value) {
      return value != nullptr && content_of(*value) != nullptr && *content_of(*value) == content;
    };
    const Json& config = merged_.config;
    if (!config.is_object()) return false;
    if (std::any_of(std::begin(kNamed), std::end(kNamed), [&](std::string_view key) { return has(config.find(key)); }))
      return true;
    for (const char* key : {"extra_special_tokens", "additional_special_tokens"})
      if (const Json* list = config.find(key); list != nullptr && list->is_array())
        for (const Json& item : list->as_array())
          if (has(&item)) return true;
    return false;
  }

  /// Special tokens are tokens of the text, too. They are either in the vocabulary or get the next id.
  void add_named() {
    std::vector<const Json*> tokens;
    const Json config = merged_.config;
    for (const std::string_view key : kNamed)
      if (const Json* token = config.find(key)) tokens.push_back(token);
    for (const auto& [key, token] : config.as_object())
      if (key.ends_with("_token") && std::find(std::begin(kNamed), std::end(kNamed), key) == std::end(kNamed))
        tokens.push_back(&token);
    for (const char* key : {"extra_special_tokens", "additional_special_tokens"}) {
      const Json* more = config.find(key);
      if (more == nullptr) continue;
      if (more->is_array())
        for (const Json& token : more->as_array()) tokens.push_back(&token);
      if (more->is_object())
        for (const auto& [name, token] : more->as_object()) tokens.push_back(&token);
    }
    for (const Json* token : tokens) {
      const std::string* content = content_of(*token);
      if (content == nullptr || entry_of_.contains(*content)) continue;
      const auto known = ids_.find(*content);
      add(entry(known != ids_.end() ? known->second : next_, *content, *token, true));
    }
  }

  /// If no other name is given, documents end with the first added token in the model's eos_token_id.
  void take_end_of_model() {
    const Json* ids = model_.is_object() ? model_.find("eos_token_id") : nullptr;
    if (ids == nullptr) return;
    if (merged_.config.is_object())
      if (const Json* known = merged_.config.find("eos_token"); known != nullptr && !known->is_null()) return;
    const Json::Array one{*ids};
    for (const Json& id : ids->is_array() ? ids->as_array() : one)
      for (const Json& token : entries_)
        if (id.is_int() && token.at("id") == id) {
          if (merged_.config.is_null()) merged_.config = Json::object();
          merged_.config["eos_token"] = token.at("content");
          merged_.named = true;
          return;
        }
  }

  const std::string& where_;
  const std::string config_where_;
  MergedTokenizer merged_;
  Json special_map_, added_file_, model_;
  std::unordered_map<std::string, int64_t> ids_;      // the ids of all tokens
  std::unordered_map<std::string, size_t> entry_of_;  // indices into `entries_`
  Json::Array entries_;                               // the entries of added_tokens
  int64_t next_ = 0;
};

}  // namespace

MergedTokenizer merge_tokenizer(Json tokenizer, const FilesBeside& beside, const std::string& where) {
  return Merge(std::move(tokenizer), beside, where).merge();
}

}  // namespace slipstream::data

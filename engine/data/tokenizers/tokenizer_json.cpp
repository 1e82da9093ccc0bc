// SPDX-License-Identifier: Apache-2.0
// Converts the document of a tokenizer to the parts of a BpeTokenizer, and refuses what no part can represent.

#include "engine/data/tokenizers/tokenizer_json.h"

#include <algorithm>
#include <optional>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/base/utf8.h"
#include "engine/data/tokenizers/bpe_tokenizer.h"
#include "engine/data/tokenizers/byte_alphabet.h"
#include "engine/data/tokenizers/merge_tokenizer.h"
#include "engine/data/tokenizers/tokenizer_node.h"

namespace slipstream::data {
namespace {

constexpr std::string_view kMark = "\xe2\x96\x81";  // U+2581

bool is_one_character(std::string_view text) {
  return !text.empty() && static_cast<size_t>(next_code_point(text, 0).size_bytes) == text.size();
}

/// Returns the pattern that matches exactly `text`.
std::string quoted_pattern(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && byte > 0x20 && std::isalnum(byte) == 0) out += '\\';
    out += c;
  }
  return out;
}

class Reader {
 public:
  explicit Reader(const TokenizerNode& root) : root_(root) {}

  BpeParts read() {
    root_.allow({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                 "decoder", "model"});
    if (const TokenizerNode version = root_["version"]; !version.is_null() && version.string() != "1.0")
      version.unsupported("\"1.0\"");
    normalizer(root_["normalizer"]);
    pre_tokenizer(root_["pre_tokenizer"]);
    vocabulary(root_["model"]);
    added_tokens(root_["added_tokens"]);
    merges(root_["model"]);
    decoder(root_["decoder"]);
    post_processor(root_["post_processor"]);
    pairs();
    return std::move(parts_);
  }

 private:
  void normalizer(const TokenizerNode& node) {
    if (node.is_null()) return;
    const std::string type = node.type();
    Normalizer& into = parts_.normalizer;
    if (type == "Sequence") {
      node.allow({"type", "normalizers"});
      for (const TokenizerNode& item : node["normalizers"].items()) normalizer(item);
      return;
    }
    static constexpr std::pair<std::string_view, NormalForm> kForms[] = {
        {"NFC", NormalForm::nfc}, {"NFD", NormalForm::nfd}, {"NFKC", NormalForm::nfkc}, {"NFKD", NormalForm::nfkd}};
    for (const auto& [name, form] : kForms)
      if (type == name) {
        node.allow({"type"});
        if (into.form != NormalForm::none || !into.replacements.empty() || !into.prefix.empty())
          node.fail("follows another normalizer, need it to be the first");
        into.form = form;
        return;
      }
    if (type == "Prepend") {
      node.allow({"type", "prepend"});
      if (!into.prefix.empty()) node.fail("is the second Prepend, need one at most");
      into.prefix = node["prepend"].string();
    } else if (type == "Replace") {
      node.allow({"type", "pattern", "content"});
      const TokenizerNode pattern = node["pattern"];
      pattern.allow({"String"});
      const std::string from = pattern["String"].string();
      if (!is_one_character(from)) pattern["String"].unsupported("one character");
      replace(from, node["content"].string());
    } else {
      node["type"].unsupported("NFC, NFD, NFKC, NFKD, Prepend, Replace or Sequence");
    }
  }

  /// Adds a replacement that is applied after those before it.
  void replace(const std::string& from, const std::string& to) {
    const auto apply = [&](std::string& text) {
      std::string out;
      for (size_t at = 0; at < text.size();) {
        const auto size = static_cast<size_t>(next_code_point(text, at).size_bytes);
        out += text.compare(at, size, from) == 0 ? to : text.substr(at, size);
        at += size;
      }
      text = out;
    };
    Normalizer& into = parts_.normalizer;
    apply(into.prefix);
    bool known = false;
    for (auto& [earlier, text] : into.replacements) {
      apply(text);
      known |= earlier == from;
    }
    if (!known) into.replacements.emplace_back(from, to);
  }

  void pre_tokenizer(const TokenizerNode& node) {
    if (node.is_null()) return;
    const std::string type = node.type();
    WordRules& into = parts_.words;
    if (byte_level_ || metaspace_) node.fail("follows ByteLevel or Metaspace, need these to be the last");
    if (type == "Sequence") {
      node.allow({"type", "pretokenizers"});
      for (const TokenizerNode& item : node["pretokenizers"].items()) pre_tokenizer(item);
    } else if (type == "Split") {
      split(node);
    } else if (type == "Digits") {
      node.allow({"type", "individual_digits"});
      into.rules.push_back({Pattern(node["individual_digits"].boolean(false) ? "\\p{N}" : "\\p{N}+", node.path())});
    } else if (type == "ByteLevel") {
      node.allow({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      byte_level_ = true;
      if (node["add_prefix_space"].boolean(true)) {
        if (!into.rules.empty()) node["add_prefix_space"].unsupported("false after another pre-tokenizer");
        parts_.word_prefix = " ";
      }
      if (node["use_regex"].boolean(true)) into.rules.push_back({Pattern(kGpt2Pattern, node.path())});
    } else if (type == "Metaspace") {
      metaspace(node);
    } else {
      node["type"].unsupported("Split, Digits, ByteLevel, Metaspace or Sequence");
    }
  }

  void split(const TokenizerNode& node) {
    node.allow({"type", "pattern", "behavior", "invert"});
    const TokenizerNode pattern = node["pattern"];
    pattern.allow({"Regex", "String"});
    const bool regex = !pattern["Regex"].is_null();
    const TokenizerNode text = pattern[regex ? "Regex" : "String"];
    if (text.string().empty()) text.fail("is empty, need a pattern");
    if (regex && has_possessive_interval(text.string())) text.unsupported("a pattern without {..}+");
    const std::string source = fmt::format("{}: {}", node.where(), text.path());
    WordRule rule{Pattern(regex ? text.string() : quoted_pattern(text.string()), source), WordRule::Keep::all};
    const std::string behavior = node["behavior"].string();
    const bool invert = node["invert"].boolean(false);
    if (behavior == "Removed")
      rule.keep = invert ? WordRule::Keep::matches : WordRule::Keep::between;
    else if (behavior != "Isolated")
      node["behavior"].unsupported("\"Isolated\" or \"Removed\"");
    parts_.words.rules.push_back(std::move(rule));
  }

  void metaspace(const TokenizerNode& node) {
    node.allow({"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"});
    if (node["replacement"].string() != kMark) node["replacement"].unsupported("\"\xe2\x96\x81\"");
    if (!parts_.words.rules.empty()) node.fail("follows another pre-tokenizer, need it to be the only one");
    metaspace_ = true;
    metaspace_split_ = node["split"].boolean(true);
    parts_.mark_spaces = true;
    const TokenizerNode scheme = node["prepend_scheme"];
    const std::string word = !scheme.is_null()                        ? scheme.string()
                             : node["add_prefix_space"].boolean(true) ? "always"
                                                                      : "never";
    if (word != "always" && word != "first" && word != "never") scheme.unsupported("always, first or never");
    if (word == "never") return;
    parts_.word_prefix = kMark;
    parts_.word_prefix_at_begin_only = word == "first";
  }

  void vocabulary(const TokenizerNode& node) {
    if (const TokenizerNode type = node["type"]; !type.is_null() && type.string() != "BPE") type.unsupported("\"BPE\"");
    node.allow({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                "byte_fallback", "ignore_merges", "vocab", "merges"});
    if (const TokenizerNode dropout = node["dropout"];
        !dropout.is_null() && !(dropout.json().is_number() && dropout.json().as_double() == 0))
      dropout.unsupported("null");
    node["continuing_subword_prefix"].require_null();
    node["end_of_word_suffix"].require_null();
    const TokenizerNode vocab = node["vocab"];
    if (!vocab.json().is_object()) vocab.fail("is not an object, need tokens and their ids");
    int64_t most = -1;
    for (const auto& [token, id] : vocab.json().as_object()) {
      const int64_t value = TokenizerNode(id, token_path(token), node.where()).id();
      most = std::max(most, value);
      ids_.emplace(token, static_cast<int32_t>(value));
    }
    limit_ids(vocab, most);
    for (const auto& [token, id] : vocab.json().as_object()) {
      std::string& place = tokens_[static_cast<size_t>(id.as_int())];
      const TokenizerNode entry(id, token_path(token), node.where());
      if (token.empty()) entry.fail("is the empty token, need at least one character");
      if (!place.empty()) entry.fail(fmt::format("= {} is the id of another token, too", id.as_int()));
      place = token;
    }
  }

  std::string token_path(const std::string& token) const { return fmt::format("model.vocab[{}]", files::shown(token)); }

  /// Unused ids take memory, so there may be no more of them than tokens.
  void limit_ids(const TokenizerNode& node, int64_t most) {
    const auto tokens = static_cast<int64_t>(ids_.size());
    if (most > 2 * tokens + 1024)
      node.fail(
          fmt::format("has the id {} in a vocabulary of {} tokens, need at most {}", most, tokens, 2 * tokens + 1024));
    if (most + 1 > std::ssize(tokens_)) tokens_.resize(static_cast<size_t>(most + 1));
  }

  void added_tokens(const TokenizerNode& node) {
    if (node.is_null()) return;
    for (const TokenizerNode& item : node.items()) {
      item.allow({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      const int64_t id = item["id"].id();
      const std::string content = item["content"].string();
      if (content.empty()) item["content"].fail("is empty, need at least one character");
      const auto [known, fresh] = ids_.emplace(content, static_cast<int32_t>(id));
      if (known->second != id) item["id"].fail(fmt::format("= {}, but this token has the id {}", id, known->second));
      if (fresh) {
        limit_ids(item["id"], id);
        std::string& place = tokens_[static_cast<size_t>(id)];
        if (!place.empty()) item["id"].fail(fmt::format("= {} is the id of {}, too", id, files::shown(place)));
        place = content;
      }
      parts_.added.push_back({.id = static_cast<int32_t>(id),
                              .content = content,
                              .strip_left = item["lstrip"].boolean(false),
                              .strip_right = item["rstrip"].boolean(false),
                              .normalized = item["normalized"].boolean(true),
                              .special = item["special"].boolean(false),
                              .single_word = item["single_word"].boolean(false)});
    }
  }

  int32_t id_of(const TokenizerNode& node, std::string_view token) const {
    const auto found = ids_.find(std::string(token));
    if (found == ids_.end()) node.fail(fmt::format("names the token {}, which model.vocab lacks", files::shown(token)));
    return found->second;
  }

  void merges(const TokenizerNode& node) {
    BpeModel& model = parts_.model;
    model.byte_level = byte_level_;
    model.byte_fallback = node["byte_fallback"].boolean(false);
    model.fuse_unknown = node["fuse_unk"].boolean(false);
    model.whole_words = node["ignore_merges"].boolean(false);
    std::unordered_map<uint64_t, size_t> seen;
    const TokenizerNode list = node["merges"];
    if (!list.json().is_array()) list.fail("is not an array, need pairs of tokens");
    const Json::Array& items = list.json().as_array();
    model.merges.reserve(items.size());
    for (size_t i = 0; i < items.size(); ++i) {
      const TokenizerNode item(items[i], fmt::format("model.merges[{}]", i), node.where());
      std::string left, right;
      if (item.json().is_string()) {
        const std::string& both = item.json().as_string();
        const size_t space = both.find(' ');
        if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos)
          item.fail(fmt::format("= {} has not two parts with a space between them", files::shown(both)));
        left = both.substr(0, space);
        right = both.substr(space + 1);
      } else {
        const std::vector<TokenizerNode> parts = item.items();
        if (parts.size() != 2) item.fail(fmt::format("has {} parts, need 2", parts.size()));
        left = parts[0].string();
        right = parts[1].string();
      }
      const Merge merge{.left = id_of(item, left),
                        .right = id_of(item, right),
                        .rank = static_cast<int32_t>(i),
                        .result = id_of(item, left + right)};
      const uint64_t pair = static_cast<uint64_t>(merge.left) << 32 | static_cast<uint32_t>(merge.right);
      const auto [known, fresh] = seen.emplace(pair, model.merges.size());
      if (fresh)
        model.merges.push_back(merge);
      else
        model.merges[known->second] = merge;  // the last one counts, as in the library
    }
    tokens_into(model);
    unknown(node["unk_token"]);
  }

  /// With a token for every byte, no character is unknown. So the library opens files whose unk_token is no token.
  void unknown(const TokenizerNode& node) {
    BpeModel& model = parts_.model;
    const auto missing = std::find_if(model.byte_ids.begin(), model.byte_ids.end(), [](int32_t id) { return id < 0; });
    if (node.is_null() || (missing == model.byte_ids.end() && !ids_.contains(node.string()))) return;
    model.unknown = id_of(node, node.string());
  }

  void tokens_into(BpeModel& model) {
    std::vector<bool> in_words(tokens_.size());
    for (const auto& [token, value] : root_["model"]["vocab"].json().as_object())
      in_words[static_cast<size_t>(value.as_int())] = true;
    model.tokens.resize(tokens_.size());
    for (size_t id = 0; id < tokens_.size(); ++id) {
      const std::string& token = tokens_[id];
      model.tokens[id] = token;
      if (!byte_level_) continue;
      if (const std::optional<std::string> bytes = bytes_of_characters(token))
        model.tokens[id] = *bytes;
      else
        in_words[id] = false;  // no text contains these characters
    }
    for (size_t id = 0; id < tokens_.size(); ++id) {
      const std::string& token = model.tokens[id];
      if (!in_words[id]) continue;
      const auto number = static_cast<int32_t>(id);
      if (byte_level_ && token.size() == 1) model.byte_ids[static_cast<unsigned char>(token[0])] = number;
      if (!byte_level_ && is_one_character(token)) model.char_ids.emplace(token, number);
      if (model.whole_words) model.word_ids.emplace(token, number);
    }
    if (!model.byte_fallback || byte_level_) return;
    for (int byte = 0; byte < 256; ++byte)
      if (const auto found = ids_.find(fmt::format("<0x{:02X}>", byte)); found != ids_.end())
        model.byte_ids[static_cast<size_t>(byte)] = found->second;
  }

  void decoder(const TokenizerNode& node) {
    if (node.is_null()) {
      if (!byte_level_) node.fail("is null, need a decoder");
      return;
    }
    const std::string type = node.type();
    TokenDecoder& into = parts_.decoder;
    if (type == "Sequence") {
      node.allow({"type", "decoders"});
      for (const TokenizerNode& item : node["decoders"].items()) decoder(item);
    } else if (type == "ByteLevel") {
      if (!byte_level_) node.fail("is ByteLevel, but pre_tokenizer is not");
    } else if (byte_level_) {
      node["type"].unsupported("ByteLevel");
    } else if (type == "Replace") {
      node.allow({"type", "pattern", "content"});
      if (node["pattern"]["String"].string() != kMark || node["content"].string() != " ")
        node.unsupported("\xe2\x96\x81 replaced by a space");
      into.spaces = true;
    } else if (type == "ByteFallback") {
      into.bytes = true;
    } else if (type == "Strip") {
      node.allow({"type", "content", "start", "stop"});
      if (node["content"].string() != " " || node["start"].id() != 1 || node["stop"].id() != 0)
        node.unsupported("one space at the start");
      into.strip_first_space = true;
    } else if (type == "Metaspace") {
      into.spaces = true;
      into.strip_first_marks = node["prepend_scheme"].is_null() ? node["add_prefix_space"].boolean(true)
                                                                : node["prepend_scheme"].string() != "never";
    } else if (type != "Fuse") {
      node["type"].unsupported("ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace or Sequence");
    }
  }

  /// Reads only the tokens that surround a text, because the text is encoded without them.
  void post_processor(const TokenizerNode& node) {
    if (node.is_null()) return;
    const std::string type = node.type();
    if (type == "Sequence") {
      for (const TokenizerNode& item : node["processors"].items()) post_processor(item);
    } else if (type == "TemplateProcessing") {
      bool text_seen = false;
      for (const TokenizerNode& item : node["single"].items()) {
        text_seen |= !item["Sequence"].is_null();
        if (item["SpecialToken"].is_null()) continue;
        const TokenizerNode token = item["SpecialToken"]["id"];
        const int32_t id = id_of(token, token.string());
        if (text_seen) continue;
        parts_.special.begin_of_text = id;
        parts_.special.prompt_begins = true;
      }
    } else if (type != "ByteLevel") {
      node["type"].unsupported("ByteLevel, TemplateProcessing or Sequence");
    }
  }

  /// Without rules, the whole text is one word. It may end between two characters that no token of a merge contains
  /// side by side: no merge crosses such a position, whatever the order of the merges.
  void pairs() {
    const BpeModel& model = parts_.model;
    WordRules& words = parts_.words;
    if (byte_level_ || !words.rules.empty()) return;
    words.at_marks = metaspace_ && metaspace_split_;
    const bool all_bytes =
        std::all_of(model.byte_ids.begin(), model.byte_ids.end(), [](int32_t id) { return id >= 0; });
    // Tokens of whole words, adjacent unknown characters and merged bytes can cross such positions.
    if (model.whole_words || (model.fuse_unknown && !all_bytes)) return;
    std::vector<bool> bytes(model.tokens.size());
    for (const int32_t id : model.byte_ids)
      if (id >= 0) bytes[static_cast<size_t>(id)] = true;
    for (const Merge& merge : model.merges) {
      if (bytes[static_cast<size_t>(merge.left)] || bytes[static_cast<size_t>(merge.right)]) return;
      const std::string& token = model.tokens[static_cast<size_t>(merge.result)];
      uint32_t before = 0;
      for (size_t at = 0; at < token.size();) {
        CodePoint point = next_code_point(token, at);
        if (point.value == ' ') point.value = 0x2581;
        if (at > 0) words.pairs.insert(before, point.value);
        before = point.value;
        at += static_cast<size_t>(point.size_bytes);
      }
    }
    words.at_pairs = true;
  }

  const TokenizerNode& root_;
  BpeParts parts_;
  bool byte_level_ = false, metaspace_ = false, metaspace_split_ = false;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<std::string> tokens_;  // by id
};

/// Returns a special token of tokenizer_config.json, which is a text or an object with one.
int32_t special_of(const TokenizerNode& config, std::string_view key, const std::vector<AddedToken>& added) {
  const TokenizerNode node = config[key];
  if (node.is_null()) return -1;
  const std::string& content = node.json().is_object() ? node["content"].string() : node.string();
  const auto found =
      std::find_if(added.begin(), added.end(), [&](const AddedToken& t) { return t.content == content; });
  return found != added.end() ? found->id : -1;
}

int32_t usual_of(std::initializer_list<std::string_view> usual, const std::vector<AddedToken>& added) {
  for (const std::string_view content : usual)
    for (const AddedToken& token : added)
      if (token.content == content) return token.id;
  return -1;
}

}  // namespace

std::shared_ptr<const Tokenizer> parse_tokenizer_json(const TokenizerJson& file) {
  Json document;
  try {
    document = Json::parse(file.text, file.where, JsonNumbers::python);
  } catch (const DataError& error) {
    throw DataError("[data] {} Restore the file.", error.what());
  }
  const MergedTokenizer merged = merge_tokenizer(std::move(document),
                                                 {.config = file.config_text,
                                                  .special_map = file.special_map_text,
                                                  .added_tokens = file.added_tokens_text,
                                                  .model = file.model_text},
                                                 file.where);
  const TokenizerNode root(merged.tokenizer, "", file.where);
  if (!merged.tokenizer.is_object()) root.fail("the file is not a JSON object");
  BpeParts parts = Reader(root).read();
  const std::string text = merged.added ? merged.tokenizer.dump(2) + "\n" : std::string(file.text);
  parts.name = std::string(kFileTokenizer) + xxh3_128_hex(text.data(), std::ssize(text));
  parts.files.emplace_back("tokenizer.json", text);
  if (!merged.config.is_null()) {
    const std::string where = "tokenizer_config.json beside " + file.where;
    const TokenizerNode node(merged.config, "", where);
    if (const int32_t id = special_of(node, "bos_token", parts.added); id >= 0) parts.special.begin_of_text = id;
    parts.special.end_of_text = special_of(node, "eos_token", parts.added);
    parts.files.emplace_back("tokenizer_config.json",
                             merged.named ? merged.config.dump(2) + "\n" : std::string(file.config_text));
  }
  if (parts.special.begin_of_text < 0)
    parts.special.begin_of_text = usual_of({"<|begin_of_text|>", "<s>", "<|endoftext|>"}, parts.added);
  if (parts.special.end_of_text < 0)
    parts.special.end_of_text = usual_of({"<|end_of_text|>", "</s>", "<|endoftext|>"}, parts.added);
  return make_bpe_tokenizer(std::move(parts));
}

}  // namespace slipstream::data

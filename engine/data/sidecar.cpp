// SPDX-License-Identifier: Apache-2.0
// JSON text to structs and back. The only file of data and checkpoint that includes nlohmann-json.
//
// The events of the parser are read instead of its document, because the document silently keeps the last of two equal
// keys, has no limit on nesting, and takes a NUL byte for the end of the text.

#include "engine/data/sidecar.h"

#include <algorithm>
#include <limits>

#include <nlohmann/json.hpp>

#include "engine/base/check.h"

namespace slipstream::data {

namespace {

using Json = nlohmann::json;

constexpr size_t kDepthMax = 32;
constexpr size_t kValuesMax = 4'000'000;  // bounds the memory that a hostile header can ask for
constexpr size_t kConfigBytesMax = 16u << 20;

struct Value {
  enum class Kind : uint8_t { null, boolean, natural, negative, real, string, array, object };
  Kind kind = Kind::null;
  bool boolean = false;
  uint64_t natural = 0;
  int64_t negative = 0;
  double real = 0;
  std::string string;
  std::vector<std::string> keys;  // of an object, beside items
  std::vector<Value> items;
};

const char* kind_name(Value::Kind kind) {
  switch (kind) {
    case Value::Kind::null: return "null";
    case Value::Kind::boolean: return "a boolean";
    case Value::Kind::natural: return "a natural number";
    case Value::Kind::negative: return "a negative integer";
    case Value::Kind::real: return "a real";
    case Value::Kind::string: return "a string";
    case Value::Kind::array: return "an array";
    case Value::Kind::object: return "an object";
  }
  return "?";
}

/// Builds a Value from the parser's events; `problem` says why it stopped.
class Builder {
 public:
  bool null() { return add({}) != nullptr; }
  bool boolean(bool value) { return add({.kind = Value::Kind::boolean, .boolean = value}) != nullptr; }
  bool number_integer(int64_t value) { return add({.kind = Value::Kind::negative, .negative = value}) != nullptr; }
  bool number_unsigned(uint64_t value) { return add({.kind = Value::Kind::natural, .natural = value}) != nullptr; }
  bool number_float(double value, const std::string&) {
    return add({.kind = Value::Kind::real, .real = value}) != nullptr;
  }
  bool string(std::string& value) {
    return add({.kind = Value::Kind::string, .string = std::move(value)}) != nullptr;
  }
  bool binary(Json::binary_t&) { return false; }
  bool start_object(size_t) { return open(Value::Kind::object); }
  bool start_array(size_t) { return open(Value::Kind::array); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    stack_.back()->keys.push_back(std::move(name));
    return true;
  }
  bool end_object() {
    std::vector<std::string_view> names(stack_.back()->keys.begin(), stack_.back()->keys.end());
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice == names.end()) return close();
    problem = fmt::format("has the key {} twice", shown(*twice));
    return false;
  }
  bool parse_error(size_t position, const std::string&, const Json::exception&) {
    problem = fmt::format("is not JSON at byte {}", position > 0 ? position - 1 : 0);
    return false;
  }

  Value root;
  std::string problem;

 private:
  Value* add(Value value) {
    if (++values_ > kValuesMax) {
      problem = fmt::format("has more than {} values", kValuesMax);
      return nullptr;
    }
    if (stack_.empty()) {
      root = std::move(value);
      return &root;
    }
    // Only the innermost container grows, so the pointers on the stack stay good.
    stack_.back()->items.push_back(std::move(value));
    return &stack_.back()->items.back();
  }
  bool open(Value::Kind kind) {
    if (stack_.size() == kDepthMax) {
      problem = fmt::format("is nested deeper than {} levels", kDepthMax);
      return false;
    }
    Value* value = add({.kind = kind});
    if (value != nullptr) stack_.push_back(value);
    return value != nullptr;
  }
  bool close() {
    stack_.pop_back();
    return true;
  }

  std::vector<Value*> stack_;
  size_t values_ = 0;
};

/// Reads the fields of one object; every complaint names the document and the key.
class Reader {
 public:
  Reader(const Document& document, const Value& object, std::string place)
      : document_(document), object_(object), place_(std::move(place)) {
    need(object, Value::Kind::object, place_);
  }

  [[noreturn]] void fail(const std::string& problem) const {
    refuse(document_.owner, fmt::format("{} {}. Make the file again, or restore it.", document_.where, problem));
  }
  void need(const Value& value, Value::Kind kind, const std::string& place) const {
    if (value.kind != kind)
      fail(fmt::format("has {} {}, need {}", place, kind_name(value.kind), kind_name(kind)));
  }
  const Value* find(std::string_view key) const {
    const auto at = std::find(object_.keys.begin(), object_.keys.end(), key);
    return at == object_.keys.end() ? nullptr : &object_.items[static_cast<size_t>(at - object_.keys.begin())];
  }
  const Value& get(std::string_view key, Value::Kind kind) const {
    const Value* value = find(key);
    if (value == nullptr) fail(fmt::format("lacks the key \"{}\" in {}", key, place_));
    need(*value, kind, fmt::format("\"{}\" of {} as", key, place_));
    return *value;
  }
  const std::string& string(std::string_view key) const { return get(key, Value::Kind::string).string; }
  uint64_t natural(std::string_view key) const { return get(key, Value::Kind::natural).natural; }
  std::vector<uint64_t> naturals(std::string_view key) const {
    std::vector<uint64_t> out;
    for (const Value& item : get(key, Value::Kind::array).items) {
      need(item, Value::Kind::natural, fmt::format("in \"{}\" of {}", key, place_));
      out.push_back(item.natural);
    }
    return out;
  }
  std::vector<std::string> strings(std::string_view key) const {
    std::vector<std::string> out;
    for (const Value& item : get(key, Value::Kind::array).items) {
      need(item, Value::Kind::string, fmt::format("in \"{}\" of {}", key, place_));
      out.push_back(item.string);
    }
    return out;
  }
  void allow_only(std::initializer_list<std::string_view> known) const {
    for (const std::string& key : object_.keys)
      if (std::find(known.begin(), known.end(), key) == known.end())
        fail(fmt::format("has the unknown key {} in {}", shown(key), place_));
  }

 private:
  const Document& document_;
  const Value& object_;
  std::string place_;
};

Value parse(const Document& document) {
  Builder builder;
  const auto stop = [&](const std::string& problem) {
    refuse(document.owner, fmt::format("{} {}. Make the file again, or restore it.", document.where, problem));
  };
  const size_t first = document.text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) stop("is empty, need a JSON object");
  if (document.text[first] != '{') stop(fmt::format("does not begin with {{ at byte {}", first));
  if (const size_t nul = document.text.find('\0'); nul != std::string_view::npos)
    stop(fmt::format("is not JSON at byte {}", nul));
  if (!Json::sax_parse(document.text.begin(), document.text.end(), &builder)) stop(builder.problem);
  return std::move(builder.root);
}

std::string text_of(const std::string& string) { return Json(string).dump(); }

std::string text_of(double real) { return Json(real).dump(); }

std::string text_of(const std::vector<std::string>& strings) {
  std::string out = "[";
  for (size_t i = 0; i < strings.size(); ++i) out += (i > 0 ? "," : "") + text_of(strings[i]);
  return out + "]";
}

/// `value` as JSON text; the depth of a parsed value is bounded, so is this recursion.
std::string text_of(const Value& value) {
  switch (value.kind) {
    case Value::Kind::null: return "null";
    case Value::Kind::boolean: return value.boolean ? "true" : "false";
    case Value::Kind::natural: return std::to_string(value.natural);
    case Value::Kind::negative: return std::to_string(value.negative);
    case Value::Kind::real: return text_of(value.real);
    case Value::Kind::string: return text_of(value.string);
    case Value::Kind::array:
    case Value::Kind::object: break;
  }
  const bool object = value.kind == Value::Kind::object;
  std::string out = object ? "{" : "[";
  for (size_t i = 0; i < value.items.size(); ++i) {
    if (i > 0) out += ",";
    if (object) out += text_of(value.keys[i]) + ":";
    out += text_of(value.items[i]);
  }
  return out + (object ? "}" : "]");
}

ConfigValue config_value_of(const Value& value) {
  switch (value.kind) {
    case Value::Kind::null: return nullptr;
    case Value::Kind::boolean: return value.boolean;
    case Value::Kind::natural:
      if (value.natural > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return JsonText{text_of(value)};
      return static_cast<int64_t>(value.natural);
    case Value::Kind::negative: return value.negative;
    case Value::Kind::real: return value.real;
    case Value::Kind::string: return value.string;
    case Value::Kind::array: {
      std::vector<std::string> strings;
      for (const Value& item : value.items) {
        if (item.kind != Value::Kind::string) return JsonText{text_of(value)};
        strings.push_back(item.string);
      }
      return strings;
    }
    case Value::Kind::object: return JsonText{text_of(value)};
  }
  return nullptr;
}

std::string text_of(const ConfigValue& value) {
  struct Visitor {
    std::string operator()(std::nullptr_t) const { return "null"; }
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(int64_t number) const { return std::to_string(number); }
    std::string operator()(double real) const { return text_of(real); }
    std::string operator()(const std::string& string) const { return text_of(string); }
    std::string operator()(const std::vector<std::string>& strings) const { return text_of(strings); }
    std::string operator()(const JsonText& json) const { return json.text; }
  };
  return std::visit(Visitor{}, value);
}

std::string object_text(const std::vector<std::pair<std::string, std::string>>& members, const char* between) {
  std::string out = "{";
  for (size_t i = 0; i < members.size(); ++i)
    out += fmt::format("{}{}{}: {}", i > 0 ? "," : "", between, text_of(members[i].first), members[i].second);
  return out + (between[0] == '\n' ? "\n}\n" : "}\n");
}

}  // namespace

std::string write_token_shard_info(const TokenShardInfo& info) {
  std::vector<std::pair<std::string, std::string>> members = {
      {"dtype", text_of(info.dtype)},         {"vocab_size", std::to_string(info.vocab_size)},
      {"count", std::to_string(info.count)},  {"hash", text_of(info.hash)},
      {"tokenizer", text_of(info.tokenizer)}};
  if (!info.vocabulary.empty()) members.emplace_back("vocabulary", text_of(info.vocabulary));
  return object_text(members, "\n  ");
}

TokenShardInfo parse_token_shard_info(const Document& document) {
  const Value root = parse(document);
  const Reader reader(document, root, "the outermost object");
  reader.allow_only({"dtype", "vocab_size", "count", "hash", "tokenizer", "vocabulary"});
  const uint64_t vocab_size = reader.natural("vocab_size");
  if (vocab_size < 1 || vocab_size > std::numeric_limits<int32_t>::max())
    reader.fail(fmt::format("says vocab_size = {}, need 1 to {}", vocab_size, std::numeric_limits<int32_t>::max()));
  TokenShardInfo info{.dtype = reader.string("dtype"),
                      .vocab_size = static_cast<int64_t>(vocab_size),
                      .count = reader.natural("count"),
                      .hash = reader.string("hash"),
                      .tokenizer = reader.string("tokenizer"),
                      .vocabulary = {}};
  if (reader.find("vocabulary") != nullptr) info.vocabulary = reader.strings("vocabulary");
  if (info.dtype != "uint16" && info.dtype != "uint32")
    reader.fail(fmt::format("says dtype = {}, need \"uint16\" or \"uint32\"", shown(info.dtype)));
  if (info.hash.size() != 32 || info.hash.find_first_not_of("0123456789abcdef") != std::string::npos)
    reader.fail(fmt::format("says hash = {}, need 32 lowercase hexadecimal digits", shown(info.hash)));
  return info;
}

std::string write_vocabulary_info(const VocabularyInfo& info) {
  std::vector<std::pair<std::string, std::string>> members = {{"tokenizer", text_of(info.tokenizer)}};
  if (!info.vocabulary.empty()) members.emplace_back("vocabulary", text_of(info.vocabulary));
  return object_text(members, "\n  ");
}

VocabularyInfo parse_vocabulary_info(const Document& document) {
  const Value root = parse(document);
  const Reader reader(document, root, "the outermost object");
  reader.allow_only({"tokenizer", "vocabulary"});
  VocabularyInfo info{.tokenizer = reader.string("tokenizer"), .vocabulary = {}};
  if (reader.find("vocabulary") != nullptr) info.vocabulary = reader.strings("vocabulary");
  return info;
}

std::string write_safetensors_header(const SafetensorsHeader& header) {
  std::string out = "{";
  const auto open = [&](const std::string& key) { out += (out.size() > 1 ? "," : "") + text_of(key) + ":{"; };
  if (!header.metadata.empty()) {
    open("__metadata__");
    for (size_t i = 0; i < header.metadata.size(); ++i)
      out += (i > 0 ? "," : "") + text_of(header.metadata[i].first) + ":" + text_of(header.metadata[i].second);
    out += "}";
  }
  for (const SafetensorsEntry& entry : header.entries) {
    open(entry.name);
    out += "\"dtype\":" + text_of(entry.dtype) + ",\"shape\":[";
    for (size_t i = 0; i < entry.shape.size(); ++i) out += (i > 0 ? "," : "") + std::to_string(entry.shape[i]);
    out += fmt::format("],\"data_offsets\":[{},{}]}}", entry.begin_bytes, entry.end_bytes);
  }
  return out + "}";
}

SafetensorsHeader parse_safetensors_header(const Document& document) {
  const Value root = parse(document);
  const Reader reader(document, root, "the outermost object");
  SafetensorsHeader header;
  header.entries.reserve(root.items.size());
  for (size_t i = 0; i < root.items.size(); ++i) {
    const std::string& name = root.keys[i];
    const Reader fields(document, root.items[i], "the value of " + shown(name));
    if (name == "__metadata__") {
      for (size_t j = 0; j < root.items[i].keys.size(); ++j) {
        fields.need(root.items[i].items[j], Value::Kind::string, "in \"__metadata__\"");
        header.metadata.emplace_back(root.items[i].keys[j], root.items[i].items[j].string);
      }
      continue;
    }
    fields.allow_only({"dtype", "shape", "data_offsets"});
    const std::vector<uint64_t> offsets = fields.naturals("data_offsets");
    if (offsets.size() != 2)
      fields.fail(fmt::format("has {} data_offsets for {}, need 2", offsets.size(), shown(name)));
    header.entries.push_back({.name = name,
                              .dtype = fields.string("dtype"),
                              .shape = fields.naturals("shape"),
                              .begin_bytes = offsets[0],
                              .end_bytes = offsets[1]});
  }
  return header;
}

std::string write_config(const ConfigEntries& entries) {
  std::vector<std::pair<std::string, std::string>> members;
  for (const auto& [key, value] : entries) members.emplace_back(key, text_of(value));
  return object_text(members, "\n  ");
}

ConfigEntries parse_config(const Document& document) {
  if (document.text.size() > kConfigBytesMax)
    refuse(document.owner, fmt::format("{} has {} bytes, need at most {}. It is not a config.json.", document.where,
                                       document.text.size(), kConfigBytesMax));
  const Value root = parse(document);
  ConfigEntries entries;
  for (size_t i = 0; i < root.items.size(); ++i) entries.emplace_back(root.keys[i], config_value_of(root.items[i]));
  return entries;
}

}  // namespace slipstream::data

// SPDX-License-Identifier: Apache-2.0
// Reads JSON through the events of nlohmann's parser (only this file includes it) and writes JSON.

#include "engine/base/json.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/utf8.h"

namespace slipstream {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kFewKeys = 16;
constexpr size_t kMaxValues = 4'000'000;  // limits the memory that a hostile text can request

std::string place(std::string_view text, std::string_view source, size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column = newline == std::string_view::npos ? before.size() : before.size() - newline - 1;
  return fmt::format("{}:{}:{}", source, line, std::max<size_t>(column, 1));
}

constexpr std::string_view kNotNumbers[] = {"NaN", "Infinity", "-Infinity"};  // as Python writes them

/// Returns the word of kNotNumbers that begins at byte `at`, or an empty text.
std::string_view not_number_at(std::string_view text, size_t at) {
  if (at >= text.size() || (text[at] != 'N' && text[at] != 'I' && text[at] != '-')) return {};
  for (const std::string_view name : kNotNumbers)
    if (text.substr(at).starts_with(name)) return name;
  return {};
}

/// Returns true at the end of the text and at characters that may stand between two values.
bool between_values(std::string_view text, size_t at) {
  constexpr std::string_view kBetween = " \t\r\n[]{},:";
  return at >= text.size() || kBetween.find(text[at]) != std::string_view::npos;
}

/// Returns `text` with null in the place of each of kNotNumbers, because the parser has no event for them.
std::string with_nulls(std::string_view text) {
  std::string out;
  bool in_string = false;
  for (size_t at = 0; at < text.size(); ++at) {
    if (const size_t size = in_string ? 0 : not_number_at(text, at).size();
        size > 0 && (at == 0 || between_values(text, at - 1)) && between_values(text, at + size)) {
      out += "null";
      at += size - 1;
      continue;
    }
    if (in_string && text[at] == '\\')
      out += text[at++];
    else if (text[at] == '"')
      in_string = !in_string;
    if (at < text.size()) out += text[at];
  }
  return out;
}

/// Reads characters and counts them, because the parser's events carry no position.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;
  CountingIterator(const char* at, size_t* read) : at_(at), read_(read) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    ++*read_;
    return *this;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  size_t* read_;
};

/// Builds the value. Throws at the first value that is not supported.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(std::string_view text, std::string_view source, JsonNumbers numbers, const size_t& read)
      : text_(text), source_(source), numbers_(numbers), read_(read) {}

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(int64_t{value})); }
  bool number_unsigned(number_unsigned_t value) override {
    if (std::in_range<int64_t>(value)) return add(Json(static_cast<int64_t>(value)));
    return number_float(static_cast<double>(value), fmt::format("{}", value));
  }
  bool number_float(number_float_t value, const string_t& digits) override {
    if (numbers_ == JsonNumbers::python) return add(Json(value));
    if (digits.find_first_of(".eE") == string_t::npos)
      refuse(fmt::format("the integer {} does not fit into 64 signed bits", files::printable(digits, 40)));
    return add(Json(value));
  }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (!add_key(open_.back(), name)) refuse(fmt::format("duplicate key '{}'", files::printable(name, 200)));
    open_.back().key = std::move(name);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    if (const std::string_view name = not_number_at(text_, position - 1); !name.empty())
      throw DataError("{} is not JSON: {} is not a number of JSON.", place(text_, source_, position), name);
    const std::string_view message = error.what();
    const size_t dash = message.find(" - ");
    const size_t colon = message.rfind(": ");
    const size_t from = dash != std::string_view::npos ? dash + 3 : colon != std::string_view::npos ? colon + 2 : 0;
    throw DataError("{} is not JSON: {}.", place(text_, source_, position),
                    files::printable(message.substr(from), 200));
  }

  Json take() { return std::move(root_); }

 private:
  struct Level {
    Json value;
    std::string key;
    std::unordered_set<std::string> keys;  // of the members, once there are kFewKeys
  };
  [[noreturn]] void refuse(const std::string& problem) const {
    throw DataError("{} {}.", place(text_, source_, read_), problem);
  }
  bool add(Json value) {
    if (++values_ > kMaxValues) refuse(fmt::format("has more than {} values", kMaxValues));
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().value.is_array()) {
      open_.back().value.push_back(std::move(value));
    } else {
      members_of(open_.back()).emplace_back(std::move(open_.back().key), std::move(value));
    }
    return true;
  }
  /// Returns true if `key` is new. A few keys are compared faster than they are hashed, and most objects in JSON lines
  /// are small.
  static bool add_key(Level& level, const std::string& key) {
    const Json::Object& members = level.value.as_object();
    if (members.size() < kFewKeys)
      return std::none_of(members.begin(), members.end(), [&](const Json::Member& m) { return m.first == key; });
    if (level.keys.empty())
      for (const Json::Member& member : members) level.keys.insert(member.first);
    return level.keys.insert(key).second;
  }
  // key() has refused duplicates, so that members are appended without a search.
  static Json::Object& members_of(Level& level) { return const_cast<Json::Object&>(level.value.as_object()); }
  bool open(Json value) {
    if (open_.size() == kMaxDepth) refuse(fmt::format("nests deeper than {} levels", kMaxDepth));
    open_.push_back(Level{std::move(value), {}, {}});
    return true;
  }
  bool close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  std::string_view text_, source_;
  JsonNumbers numbers_;
  const size_t& read_;
  std::vector<Level> open_;
  size_t values_ = 0;
  Json root_;
};

void write_string(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    const size_t good = valid_utf8_prefix(text);
    for (char c : text.substr(0, good)) {
      switch (c) {
        case '"':
          out += "\\\"";
          break;
        case '\\':
          out += "\\\\";
          break;
        case '\n':
          out += "\\n";
          break;
        case '\r':
          out += "\\r";
          break;
        case '\t':
          out += "\\t";
          break;
        default:
          if (static_cast<uint8_t>(c) < 0x20) {
            out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
          } else {
            out += c;
          }
      }
    }
    text.remove_prefix(good);
    if (!text.empty()) {
      out += "\xEF\xBF\xBD";
      text.remove_prefix(1);
    }
  }
  out += '"';
}

void write_real(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  const std::string digits = fmt::format("{}", value);
  out += digits;
  if (digits.find_first_of(".e") == std::string::npos) out += ".0";
}

void new_line(std::string& out, int indent, int level) {
  if (indent > 0) {
    out += '\n';
    out.append(static_cast<size_t>(indent * level), ' ');
  }
}

}  // namespace

Json Json::parse(std::string_view text, std::string_view source, JsonNumbers numbers) {
  const std::string changed = numbers == JsonNumbers::python ? with_nulls(text) : std::string();
  if (numbers == JsonNumbers::python) text = changed;
  size_t read = 0;
  Builder builder(text, source, numbers, read);
  if (text.empty()) throw DataError("{} is empty, a JSON text needs a value.", source);
  // The parser treats a NUL byte as the end of the text.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    throw DataError("{} is not JSON: a NUL byte.", place(text, source, nul + 1));
  if (!nlohmann::json::sax_parse(CountingIterator(text.data(), &read),
                                 CountingIterator(text.data() + text.size(), &read), &builder))
    throw DataError("{} is not JSON.", place(text, source, read));
  return builder.take();
}

void Json::refuse_integer(uint64_t value) {
  throw DataError("the integer {} does not fit into 64 signed bits, the range of JSON integers here.", value);
}

std::string_view Json::type_name() const {
  static constexpr std::string_view kNames[] = {"null",     "a boolean", "an integer", "a real",
                                                "a string", "an array",  "an object"};
  return kNames[value_.index()];
}

bool Json::as_bool(std::string_view what) const {
  if (!is_bool()) throw DataError("{} needs a boolean, got {}.", what, type_name());
  return std::get<bool>(value_);
}

int64_t Json::as_int(std::string_view what) const {
  if (!is_int()) throw DataError("{} needs an integer, got {}.", what, type_name());
  return std::get<int64_t>(value_);
}

double Json::as_double(std::string_view what) const {
  if (is_int()) return static_cast<double>(std::get<int64_t>(value_));
  if (!is_number()) throw DataError("{} needs a number, got {}.", what, type_name());
  return std::get<double>(value_);
}

const std::string& Json::as_string(std::string_view what) const {
  if (!is_string()) throw DataError("{} needs a string, got {}.", what, type_name());
  return std::get<std::string>(value_);
}

const Json::Array& Json::as_array(std::string_view what) const {
  if (!is_array()) throw DataError("{} needs an array, got {}.", what, type_name());
  return std::get<Array>(value_);
}

const Json::Object& Json::as_object(std::string_view what) const {
  if (!is_object()) throw DataError("{} needs an object, got {}.", what, type_name());
  return std::get<Object>(value_);
}

const Json* Json::find(std::string_view key) const {
  for (const Member& member : as_object()) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  if (const Json* found = find(key)) return *found;
  std::string names;
  for (const Member& member : as_object()) {
    if (names.size() > 200) {
      names += ", ...";
      break;
    }
    names += (names.empty() ? "" : ", ") + files::printable(member.first, 80);
  }
  throw DataError("a JSON object has no member '{}'. Its members: {}.", key, names.empty() ? "(none)" : names);
}

Json& Json::operator[](std::string_view key) {
  if (is_null()) value_ = Object{};
  as_object();
  Object& members = std::get<Object>(value_);
  for (Member& member : members) {
    if (member.first == key) return member.second;
  }
  return members.emplace_back(std::string(key), Json()).second;
}

void Json::push_back(Json value) {
  if (is_null()) value_ = Array{};
  as_array();
  std::get<Array>(value_).push_back(std::move(value));
}

void Json::write(std::string& out, int indent, int level) const {
  const std::string_view comma = indent > 0 ? "," : ", ";
  if (is_null()) out += "null";
  if (is_bool()) out += std::get<bool>(value_) ? "true" : "false";
  if (const int64_t* integer = std::get_if<int64_t>(&value_)) out += fmt::format("{}", *integer);
  if (const double* real = std::get_if<double>(&value_)) write_real(out, *real);
  if (const std::string* text = std::get_if<std::string>(&value_)) write_string(out, *text);
  if (const Array* items = std::get_if<Array>(&value_)) {
    out += '[';
    for (size_t i = 0; i < items->size(); ++i) {
      if (i > 0) out += comma;
      new_line(out, indent, level + 1);
      (*items)[i].write(out, indent, level + 1);
    }
    if (!items->empty()) new_line(out, indent, level);
    out += ']';
  }
  if (const Object* members = std::get_if<Object>(&value_)) {
    out += '{';
    for (size_t i = 0; i < members->size(); ++i) {
      if (i > 0) out += comma;
      new_line(out, indent, level + 1);
      write_string(out, (*members)[i].first);
      out += ": ";
      (*members)[i].second.write(out, indent, level + 1);
    }
    if (!members->empty()) new_line(out, indent, level);
    out += '}';
  }
}

std::string Json::dump(int indent) const {
  std::string out;
  write(out, indent, 0);
  return out;
}

}  // namespace slipstream

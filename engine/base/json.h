// SPDX-License-Identifier: Apache-2.0
#pragma once
// JSON values with ordered members and strict reading. Written reals read back exactly.

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace slipstream {

/// The kinds of numbers that a text may contain.
enum class JsonNumbers {
  exact,   // integers within int64, finite reals
  python,  // what Python's module json writes, too: integers beyond int64, read as reals; NaN and Infinity, as null
};

/// One JSON value: null, bool, 64-bit integer, real, string, array or object. A value type; owns all it holds.
class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;

  Json() = default;  // null
  Json(std::same_as<bool> auto value) : value_(value) {}
  template <std::integral T>
  requires(!std::same_as<T, bool>) Json(T value) : value_(checked(value)) {}
  Json(double value) : value_(value) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}
  static Json array() { return Json(Array{}); }
  static Json object() { return Json(Object{}); }

  /// Reads one JSON text (RFC 8259, UTF-8). `source` names it in errors, usually a path. Pure.
  /// Throws: DataError "source:line:column ..." for malformed text, duplicate keys, numbers that `numbers` excludes,
  /// reals beyond double, nesting deeper than 64, and more than 4 million values.
  static Json parse(std::string_view text, std::string_view source = "JSON", JsonNumbers numbers = JsonNumbers::exact);

  /// Returns the text of this value. With `indent` 0 it is one line, else one member per line, indented by that many
  /// spaces per level. Reals have the fewest digits that read back as the same value, and always look like reals
  /// ("1.0"). NaN and infinities become null, and bytes that are not UTF-8 become U+FFFD. Pure.
  std::string dump(int indent = 0) const;

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_int() const { return std::holds_alternative<int64_t>(value_); }
  bool is_number() const { return is_int() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }

  /// Returns "null", "a boolean", "an integer", "a real", "a string", "an array" or "an object".
  std::string_view type_name() const;
  /// Each function throws a DataError that begins with `what` and names the required and the actual type.
  bool as_bool(std::string_view what = "a JSON value") const;
  int64_t as_int(std::string_view what = "a JSON value") const;  // refuses every real, even a whole one
  double as_double(std::string_view what = "a JSON value") const;
  const std::string& as_string(std::string_view what = "a JSON value") const;
  const Array& as_array(std::string_view what = "a JSON value") const;
  const Object& as_object(std::string_view what = "a JSON value") const;

  /// Returns the member, or null if it is absent. The search is linear in the number of members: iterate over large
  /// objects instead. Throws: DataError if this value is not an object.
  const Json* find(std::string_view key) const;
  /// Throws: DataError with the key and the existing members if the member is absent.
  const Json& at(std::string_view key) const;
  /// Returns the member. An absent member is first appended as null. A null value first becomes an object.
  Json& operator[](std::string_view key);
  /// Appends to an array. A null value first becomes an array.
  void push_back(Json value);

  bool operator==(const Json&) const = default;

 private:
  template <std::integral T>
  static int64_t checked(T value) {
    if (!std::in_range<int64_t>(value)) refuse_integer(static_cast<uint64_t>(value));
    return static_cast<int64_t>(value);
  }
  [[noreturn]] static void refuse_integer(uint64_t value);
  void write(std::string& out, int indent, int level) const;

  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value_;
};

}  // namespace slipstream

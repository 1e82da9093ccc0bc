// SPDX-License-Identifier: Apache-2.0
#pragma once
// The kinds of fields in configuration files. Each kind parses, prints and describes its values.
//
// A row of a table is one call, `Kinds::integer("model.layers", Kinds::at(&RunConfig::model, &Model::layers), {1,
// 65536}, "...")`. The parser, the listing, the reference page and the writer use this row.

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/base/modes.h"

namespace slipstream {

/// A description of a TOML value that no field accepts (a date, a table, a mixed list).
struct OtherValue {
  std::string description;
  bool operator==(const OtherValue&) const = default;
};
/// A value of a file.
using ConfigValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                                 std::vector<std::string>, OtherValue>;

/// Returns the value as TOML text. Reading it back gives the same value. Pure.
std::string to_toml(const ConfigValue& value);

/// One key of a configuration file. `set` throws a ConfigError "needs ..., got ..." to which the caller prepends the
/// key.
template <typename Config>
struct Field {
  std::string key;       // "table.key"
  std::string need;      // "an integer from 1 to 65536"
  std::string sentence;  // the text of its row in the reference page
  bool is_text = false;  // `--set key=text` needs no quotes
  std::function<ConfigValue(const Config&)> get;
  std::function<void(Config&, const ConfigValue&)> set;
};

struct IntegerRange {
  int64_t min = 0;
  int64_t max = 1'000'000'000;
};
struct RealRange {
  double min = 0;
  double max = 1e9;
  bool open_min = false;  // min itself is not allowed
  bool open_max = false;
  bool is_float32 = false;  // rounding to float32 must neither leave the range nor turn another value into 0
};
/// Returns the range of a value of at least 0 that kernels use as float32.
constexpr RealRange in_float32(RealRange range) {
  range.is_float32 = true;
  return range;
}

namespace detail {
using Words = std::vector<std::string_view>;
std::string describe_need(const IntegerRange& range);
std::string describe_need(const RealRange& range);
std::string describe_need(const Words& words);
int64_t need_integer(const ConfigValue& value, const IntegerRange& range);
double need_real(const ConfigValue& value, const RealRange& range);
bool need_boolean(const ConfigValue& value, const std::string& need = "true or false");
std::string need_text(const ConfigValue& value);
size_t need_word(const ConfigValue& value, const Words& words);  // returns the index of the word
std::vector<int64_t> need_integers(const ConfigValue& value, const IntegerRange& range);
std::vector<double> need_reals(const ConfigValue& value, const RealRange& range);
std::vector<std::string> need_texts(const ConfigValue& value);
struct Quantity {
  std::string need;
  int64_t (*parse)(std::string_view);
  std::string (*print)(int64_t);
  bool empty_is_zero = false;
};
const Quantity& size_quantity();
const Quantity& size_or_auto_quantity();  // "auto" is 0
const Quantity& rate_quantity();
const Quantity& optional_rate_quantity();  // "" is 0
const Quantity& duration_quantity();
int64_t need_quantity(const ConfigValue& value, const Quantity& quantity, const IntegerRange& range);
}  // namespace detail

/// Functions that make rows. `member` is a function from a (const) Config to the member, usually `at(...)`.
template <typename Config>
struct FieldKinds {
  /// Returns a function to the member at the end of a path of pointers to members.
  template <typename... Members>
  static auto at(Members... members) {
    return [=](auto& config) -> auto& { return (config.*....*members); };
  }
  template <typename At>
  static Field<Config> integer(std::string key, At member, IntegerRange range, std::string sentence) {
    return {std::move(key),
            detail::describe_need(range),
            std::move(sentence),
            false,
            [=](const Config& c) -> ConfigValue { return int64_t{member(c)}; },
            [=](Config& c, const ConfigValue& v) { member(c) = detail::need_integer(v, range); }};
  }
  template <typename At>
  static Field<Config> real(std::string key, At member, RealRange range, std::string sentence) {
    return {std::move(key),
            detail::describe_need(range),
            std::move(sentence),
            false,
            [=](const Config& c) -> ConfigValue { return double{member(c)}; },
            [=](Config& c, const ConfigValue& v) { member(c) = detail::need_real(v, range); }};
  }
  template <typename At>
  static Field<Config> boolean(std::string key, At member, std::string sentence) {
    return {std::move(key),
            "true or false",
            std::move(sentence),
            false,
            [=](const Config& c) -> ConfigValue { return bool{member(c)}; },
            [=](Config& c, const ConfigValue& v) { member(c) = detail::need_boolean(v); }};
  }
  /// A field that is true, false or "auto". The member is an enum whose values are {automatic, no, yes}.
  template <typename At>
  static Field<Config> choice(std::string key, At member, std::string sentence) {
    using E = std::remove_cvref_t<decltype(member(std::declval<Config&>()))>;
    const std::string need = "true, false or \"auto\"";
    return {std::move(key),
            need,
            std::move(sentence),
            false,
            [=](const Config& c) -> ConfigValue {
              if (member(c) == E::automatic) return std::string("auto");
              return member(c) == E::yes;
            },
            [=](Config& c, const ConfigValue& v) {
              if (v == ConfigValue(std::string("auto"))) {
                member(c) = E::automatic;
              } else {
                member(c) = detail::need_boolean(v, need) ? E::yes : E::no;
              }
            }};
  }
  /// A field with one of `words`. The member is the enum value of the same position.
  template <typename At>
  static Field<Config> word(std::string key, At member, detail::Words words, std::string sentence) {
    using E = std::remove_cvref_t<decltype(member(std::declval<Config&>()))>;
    return {std::move(key),
            detail::describe_need(words),
            std::move(sentence),
            true,
            [=](const Config& c) -> ConfigValue { return std::string(words.at(static_cast<size_t>(member(c)))); },
            [=](Config& c, const ConfigValue& v) { member(c) = static_cast<E>(detail::need_word(v, words)); }};
  }
  /// A field with a list of such words. The member has the enum values of the same positions.
  template <typename At>
  static Field<Config> words(std::string key, At member, detail::Words words, std::string sentence) {
    using E = typename std::remove_cvref_t<decltype(member(std::declval<Config&>()))>::value_type;
    return {std::move(key),
            "a list of words, each " + detail::describe_need(words),
            std::move(sentence),
            false,
            [=](const Config& c) -> ConfigValue {
              std::vector<std::string> list;
              for (const E value : member(c)) list.emplace_back(words.at(static_cast<size_t>(value)));
              return list;
            },
            [=](Config& c, const ConfigValue& v) {
              std::vector<E> values;
              for (const std::string& text : detail::need_texts(v))
                values.push_back(static_cast<E>(detail::need_word(text, words)));
              member(c) = std::move(values);
            }};
  }
  /// A field with one of the words of the member's enum (engine/base/modes.h).
  template <typename At>
  static Field<Config> mode(std::string key, At member, std::string sentence) {
    const auto& words = kWords<std::remove_cvref_t<decltype(member(std::declval<Config&>()))>>;
    return word(std::move(key), member, {words.begin(), words.end()}, std::move(sentence));
  }
  template <typename At>
  static Field<Config> dtype(std::string key, At member, std::string sentence) {
    static_assert(static_cast<int>(DType::f32) == 0 && static_cast<int>(DType::bf16) == 1);
    return word(std::move(key), member, {name_of(DType::f32), name_of(DType::bf16)}, std::move(sentence));
  }
  template <typename At>
  static Field<Config> text(std::string key, At member, std::string sentence) {
    return {std::move(key),
            "a text",
            std::move(sentence),
            true,
            [=](const Config& c) -> ConfigValue { return std::string(member(c)); },
            [=](Config& c, const ConfigValue& v) { member(c) = detail::need_text(v); }};
  }
  template <typename At>
  static Field<Config> integers(std::string key, At member, IntegerRange range, std::string sentence) {
    return {std::move(key),
            "a list of integers, each " + detail::describe_need(range).substr(11),
            std::move(sentence),
            false,
            [=](const Config& c) -> ConfigValue { return std::vector<int64_t>(member(c)); },
            [=](Config& c, const ConfigValue& v) { member(c) = detail::need_integers(v, range); }};
  }
  template <typename At>
  static Field<Config> reals(std::string key, At member, RealRange range, std::string sentence) {
    return {std::move(key),
            "a list of numbers, each " + detail::describe_need(range).substr(9),
            std::move(sentence),
            false,
            [=](const Config& c) -> ConfigValue { return std::vector<double>(member(c)); },
            [=](Config& c, const ConfigValue& v) { member(c) = detail::need_reals(v, range); }};
  }
  template <typename At>
  static Field<Config> texts(std::string key, At member, std::string sentence) {
    return {std::move(key),
            "a list of texts",
            std::move(sentence),
            false,
            [=](const Config& c) -> ConfigValue { return std::vector<std::string>(member(c)); },
            [=](Config& c, const ConfigValue& v) { member(c) = detail::need_texts(v); }};
  }
  /// A field with a size, a rate or a time with its unit. The range is in bytes, bytes per second or nanoseconds.
  template <typename At>
  static Field<Config> quantity(std::string key, At member, const detail::Quantity& kind, IntegerRange range,
                                std::string sentence) {
    return {std::move(key),
            kind.need,
            std::move(sentence),
            true,
            [=, &kind](const Config& c) -> ConfigValue {
              return kind.empty_is_zero && member(c) == 0 ? std::string() : kind.print(member(c));
            },
            [=, &kind](Config& c, const ConfigValue& v) { member(c) = detail::need_quantity(v, kind, range); }};
  }
};

}  // namespace slipstream

// SPDX-License-Identifier: Apache-2.0
// Checks values of configuration files against the ranges of their fields and prints them as TOML.

#include "engine/config/field.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/units.h"
#include "engine/config/nearest.h"

namespace slipstream {
namespace {

constexpr int64_t kUnboundedFrom = 1'000'000'000'000;  // error messages do not print larger bounds

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<uint8_t>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04X}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string toml_real(double value) {
  std::string digits = fmt::format("{}", value);
  if (digits.find_first_of(".en") == std::string::npos) digits += ".0";
  return digits;
}

/// Returns the value as error messages print it, with at most 80 characters.
std::string shown(const ConfigValue& value) {
  if (const auto* other = std::get_if<OtherValue>(&value)) return other->description;
  if (const auto* text = std::get_if<std::string>(&value); text && text->size() > 80)
    return fmt::format("the text {}", toml_string(fmt::format("{}...", std::string_view(*text).substr(0, 77))));
  if (std::holds_alternative<std::string>(value))
    return fmt::format("the text {}", files::printable(to_toml(value), 200));
  if (const auto* list = std::get_if<std::vector<int64_t>>(&value))
    return fmt::format("a list of {} integers", list->size());
  if (const auto* list = std::get_if<std::vector<double>>(&value))
    return fmt::format("a list of {} numbers", list->size());
  if (const auto* list = std::get_if<std::vector<std::string>>(&value))
    return fmt::format("a list of {} texts", list->size());
  return to_toml(value);
}

[[noreturn]] void refuse(const std::string& need, const ConfigValue& value) {
  throw ConfigError("needs {}, got {}", need, shown(value));
}

struct PrintUnit {
  std::string_view name;
  int64_t factor;
};

/// Prints the value in the largest unit that divides it, so that parsing gives the same integer back.
template <size_t N>
std::string print_exactly(int64_t value, const std::array<PrintUnit, N>& units) {
  for (const PrintUnit& unit : units) {
    if (value != 0 && value % unit.factor == 0) return fmt::format("{}{}", value / unit.factor, unit.name);
  }
  return fmt::format("{}{}", value, units.back().name);
}

std::string print_size(int64_t value) {
  static constexpr std::array<PrintUnit, 5> kUnits{
      {{"TiB", 1024 * kGiB}, {"GiB", kGiB}, {"MiB", kMiB}, {"KiB", kKiB}, {"B", 1}}};
  return print_exactly(value, kUnits);
}

std::string print_rate(int64_t value) {
  static constexpr std::array<PrintUnit, 5> kUnits{
      {{"Gbit/s", 125'000'000}, {"Mbit/s", 125'000}, {"MB/s", 1'000'000}, {"kB/s", 1000}, {"B/s", 1}}};
  return print_exactly(value, kUnits);
}

std::string print_duration(int64_t value) {
  static constexpr std::array<PrintUnit, 4> kUnits{
      {{"s", kSecond}, {"ms", kMillisecond}, {"us", kMicrosecond}, {"ns", 1}}};
  return print_exactly(value, kUnits);
}

}  // namespace

std::string to_toml(const ConfigValue& value) {
  if (const auto* boolean = std::get_if<bool>(&value)) return *boolean ? "true" : "false";
  if (const auto* integer = std::get_if<int64_t>(&value)) return fmt::format("{}", *integer);
  if (const auto* real = std::get_if<double>(&value)) return toml_real(*real);
  if (const auto* text = std::get_if<std::string>(&value)) return toml_string(*text);
  const auto listed = [](const auto& list, const auto& print) {
    std::string out;
    for (const auto& item : list) out += (out.empty() ? "" : ", ") + print(item);
    return "[" + out + "]";
  };
  if (const auto* list = std::get_if<std::vector<int64_t>>(&value))
    return listed(*list, [](int64_t item) { return fmt::format("{}", item); });
  if (const auto* list = std::get_if<std::vector<double>>(&value)) return listed(*list, toml_real);
  if (const auto* list = std::get_if<std::vector<std::string>>(&value)) return listed(*list, toml_string);
  return std::get<OtherValue>(value).description;
}

namespace detail {

std::string describe_need(const IntegerRange& range) {
  if (range.max >= kUnboundedFrom) return fmt::format("an integer of at least {}", range.min);
  return fmt::format("an integer from {} to {}", range.min, range.max);
}

std::string describe_need(const RealRange& range) {
  if (range.open_min && range.open_max)
    return fmt::format("a number between {} and {}, both excluded", range.min, range.max);
  if (range.open_max) return fmt::format("a number from {} to below {}", range.min, range.max);
  if (range.open_min) return fmt::format("a number above {}, at most {}", range.min, range.max);
  return fmt::format("a number from {} to {}", range.min, range.max);
}

std::string describe_need(const Words& words) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i)
    out += fmt::format("{}\"{}\"", i == 0 ? "" : i + 1 == words.size() ? " or " : ", ", words[i]);
  return out;
}

/// Refuses a value outside the range and names the bound that it breaks. `prefix` comes before the need.
void require_in(const IntegerRange& range, int64_t value, const std::string& prefix = "") {
  if (value > range.max && range.max >= kUnboundedFrom)
    refuse(fmt::format("{}an integer of at most {}", prefix, range.max), value);
  if (value < range.min || value > range.max) refuse(prefix + describe_need(range), value);
}

int64_t need_integer(const ConfigValue& value, const IntegerRange& range) {
  const auto* integer = std::get_if<int64_t>(&value);
  if (!integer) refuse(describe_need(range), value);
  require_in(range, *integer);
  return *integer;
}

double need_real(const ConfigValue& value, const RealRange& range) {
  double real = std::nan("");
  if (const auto* integer = std::get_if<int64_t>(&value)) real = static_cast<double>(*integer);
  if (const auto* given = std::get_if<double>(&value)) real = *given;
  const bool above = range.open_min ? real > range.min : real >= range.min;
  const bool below = range.open_max ? real < range.max : real <= range.max;
  if (!above || !below) refuse(describe_need(range), value);
  if (!range.is_float32) return real;
  constexpr float kSmallest = std::numeric_limits<float>::min();  // GPUs may flush smaller values to 0
  const auto single = static_cast<float>(real);
  const auto refuse_near = [&](double bound, float usable) {
    throw ConfigError("needs {}, got {}, too close to {} for float32. The nearest value that works is {}",
                      describe_need(range), shown(value), bound, usable);
  };
  if (real > 0 && single < kSmallest) refuse_near(0, kSmallest);
  if (const auto max = static_cast<float>(range.max); range.open_max && single >= max)
    refuse_near(range.max, std::nextafter(max, 0.0f));
  return real;
}

bool need_boolean(const ConfigValue& value, const std::string& need) {
  if (!std::holds_alternative<bool>(value)) refuse(need, value);
  return std::get<bool>(value);
}

std::string need_text(const ConfigValue& value) {
  if (!std::holds_alternative<std::string>(value)) refuse("a text in quotes", value);
  const std::string& text = std::get<std::string>(value);
  if (text.find('\0') != std::string::npos) refuse("a text without zero bytes", OtherValue{"one that has them"});
  return text;
}

size_t need_word(const ConfigValue& value, const Words& words) {
  const auto* text = std::get_if<std::string>(&value);
  if (!text) refuse(describe_need(words), value);
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == *text) return i;
  }
  // Words of other programs that are too different for a search by edits.
  static constexpr std::pair<std::string_view, std::string_view> kOthers[] = {
      {"gpu", "cuda"}, {"nvidia", "cuda"}, {"fp32", "float32"}, {"f32", "float32"}, {"bf16", "bfloat16"}};
  std::string near = nearest(*text, words);
  for (const auto& [theirs, ours] : kOthers)
    if (*text == theirs && std::find(words.begin(), words.end(), ours) != words.end()) near = ours;
  throw ConfigError("needs {}, got {}{}", describe_need(words), shown(value),
                    near.empty() ? "" : fmt::format(", did you mean \"{}\"?", near));
}

std::vector<int64_t> need_integers(const ConfigValue& value, const IntegerRange& range) {
  const auto* list = std::get_if<std::vector<int64_t>>(&value);
  if (!list) refuse("a list of integers", value);
  if (list->size() > 4096) refuse("a list of at most 4096 integers", value);
  for (int64_t item : *list) require_in(range, item, "in its list ");
  return *list;
}

std::vector<double> need_reals(const ConfigValue& value, const RealRange& range) {
  std::vector<double> reals;
  if (const auto* list = std::get_if<std::vector<double>>(&value))
    reals = *list;
  else if (const auto* integers = std::get_if<std::vector<int64_t>>(&value))
    reals.assign(integers->begin(), integers->end());
  else
    refuse("a list of numbers", value);
  if (reals.size() > 4096) refuse("a list of at most 4096 numbers", value);
  for (const double item : reals) need_real(item, range);
  return reals;
}

std::vector<std::string> need_texts(const ConfigValue& value) {
  if (const auto* none = std::get_if<std::vector<int64_t>>(&value); none && none->empty()) return {};
  const auto* list = std::get_if<std::vector<std::string>>(&value);
  if (!list) refuse("a list of texts in quotes", value);
  if (list->size() > 4096) refuse("a list of at most 4096 texts", value);
  for (const std::string& item : *list) need_text(item);
  return *list;
}

const Quantity& size_quantity() {
  static const Quantity kind{"a size such as \"25MiB\"", parse_bytes, print_size, false};
  return kind;
}

const Quantity& size_or_auto_quantity() {
  static const Quantity kind{"a size such as \"25MiB\", or \"auto\"",
                             [](std::string_view text) -> int64_t {
                               if (text == "auto") return 0;
                               const int64_t size_bytes = parse_bytes(text);
                               // -1 is below every range, because 0 means "auto".
                               return size_bytes == 0 ? -1 : size_bytes;
                             },
                             [](int64_t size_bytes) { return size_bytes == 0 ? "auto" : print_size(size_bytes); },
                             false};
  return kind;
}

const Quantity& rate_quantity() {
  static const Quantity kind{"a rate such as \"1Gbit/s\" or \"50GB/s\"", parse_bytes_per_second, print_rate, false};
  return kind;
}

const Quantity& optional_rate_quantity() {
  static const Quantity kind{"a rate such as \"1Gbit/s\", or \"\"", parse_bytes_per_second, print_rate, true};
  return kind;
}

const Quantity& duration_quantity() {
  static const Quantity kind{"a time such as \"50us\"", parse_duration_ns, print_duration, false};
  return kind;
}

int64_t need_quantity(const ConfigValue& value, const Quantity& quantity, const IntegerRange& range) {
  const auto* text = std::get_if<std::string>(&value);
  if (!text) refuse(quantity.need, value);
  if (text->empty() && quantity.empty_is_zero) return 0;
  int64_t amount = 0;
  try {
    amount = quantity.parse(*text);
  } catch (const ConfigError& error) {
    // The library's text is "... is not a size: it needs a number and one of the units B, kB, ..".
    const std::string_view sentence = error.what();
    const size_t reason = sentence.find(": it ");
    if (reason == std::string_view::npos) refuse(quantity.need, value);
    std::string_view rule = sentence.substr(reason + 5);
    if (rule.ends_with('.')) rule.remove_suffix(1);
    throw ConfigError("needs {}, got {}, which {}", quantity.need, shown(value), rule);
  }
  if (amount < range.min || amount > range.max)
    throw ConfigError("needs {} from {} to {}, got {}", quantity.need,
                      quantity.print(std::max<int64_t>(range.min, quantity.print(0) == "auto" ? 1 : 0)),
                      quantity.print(range.max), shown(value));
  return amount;
}

}  // namespace detail
}  // namespace slipstream

// SPDX-License-Identifier: Apache-2.0
// Reads TOML through toml++ (the only file that includes it).

#include "engine/config/toml.h"

#include <toml++/toml.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/base/files.h"
#include "engine/base/utf8.h"

namespace slipstream {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxKeyParts = 16;  // the program's keys have at most 3

std::string read_text(const std::string& path, std::string_view wanted) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) throw ConfigError("{} does not exist. Give the path of {}.", path, wanted);
  if (std::filesystem::is_directory(status))
    throw ConfigError("{} is a folder, not a file. Give the path of a file in it.", path);
  // Reading a pipe could block forever, and a second rank would find it empty.
  if (!std::filesystem::is_regular_file(status))
    throw ConfigError("{} is not a regular file. Give the path of a TOML file.", path);
  std::ifstream file(path, std::ios::binary);
  if (!file) throw ConfigError("{} cannot be read: {}. Check its permissions.", path, std::strerror(errno));
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (file.bad()) throw ConfigError("{} cannot be read: {}.", path, std::strerror(errno));
  if (text.size() > kMaxFileBytes)
    throw ConfigError("{} is larger than 1 MiB, too large for a configuration file.", path);
  return text;
}

void check_utf8(const std::string& path, const std::string& text) {
  const size_t good = valid_utf8_prefix(text);
  if (good == text.size()) return;
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(good), '\n');
  const size_t newline = good == 0 ? std::string::npos : text.rfind('\n', good - 1);
  throw ConfigError("{}:{}:{} is not UTF-8: byte 0x{:02x}. Save the file as UTF-8.", path, line,
                    newline == std::string::npos ? good + 1 : good - newline, static_cast<unsigned char>(text[good]));
}

/// Returns the position after the string that begins at `at`, or text.size() if the string has no end.
size_t end_of_string(std::string_view text, size_t at) {
  const char quote = text[at];
  const std::string_view thrice = quote == '"' ? R"(""")" : "'''";
  const bool many_lines = text.substr(at, 3) == thrice;
  for (at += many_lines ? 3 : 1; at < text.size(); ++at) {
    if (quote == '"' && text[at] == '\\') {
      ++at;
    } else if (!many_lines && text[at] == '\n') {
      return text.size();
    } else if (text[at] == quote && (!many_lines || text.substr(at, 3) == thrice)) {
      if (!many_lines) return at + 1;
      // Up to two quotes directly before the closing quotes belong to the string.
      for (at += 3; at < text.size() && text[at] == quote;) ++at;
      return at;
    }
  }
  return text.size();
}

struct Refused {
  size_t line = 0;  // 0: none
  std::string problem;
};

/// Returns the first thing that the parser must not see. The parser recurses into every part of a key, so that a long
/// key would exhaust the stack. It has undefined behaviour for characters beyond ASCII outside of texts and comments
/// (toml++ 3.3).
Refused first_refused(std::string_view text) {
  size_t line = 1, parts = 1;
  for (size_t at = text.starts_with("\xef\xbb\xbf") ? 3 : 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      const std::string_view inside = text.substr(at, end_of_string(text, at) - at);
      line += static_cast<size_t>(std::count(inside.begin(), inside.end(), '\n'));
      at += inside.size() - 1;
    } else if (c == '#') {
      at = std::min(text.find('\n', at), text.size()) - 1;
    } else if (c == '.') {
      if (++parts > kMaxKeyParts)
        return {line,
                fmt::format("has a key of more than {} parts. docs/reference/config.md lists all keys", kMaxKeyParts)};
    } else if (static_cast<unsigned char>(c) >= 0x80) {
      return {line, "is not TOML: it has a character beyond ASCII outside of a text. Write it in quotes"};
    } else if (std::string_view("=,[]{}\n").find(c) != std::string_view::npos) {
      parts = 1;
      line += c == '\n' ? 1 : 0;
    }
  }
  return {};
}

std::string quoted_key(std::string_view part) {
  const auto is_bare = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-'; };
  if (!part.empty() && std::all_of(part.begin(), part.end(), is_bare)) return std::string(part);
  return to_toml(ConfigValue(std::string(part)));
}

ConfigValue list_of(const toml::array& array) {
  std::vector<int64_t> integers;
  std::vector<double> reals;
  std::vector<std::string> texts;
  for (const toml::node& item : array) {
    if (const auto* value = item.as_integer()) {
      integers.push_back(value->get());
      reals.push_back(static_cast<double>(value->get()));
    } else if (const auto* real = item.as_floating_point()) {
      reals.push_back(real->get());
    } else if (const auto* text = item.as_string()) {
      texts.push_back(text->get());
    }
  }
  if (integers.size() == array.size()) return integers;
  if (reals.size() == array.size()) return reals;
  if (texts.size() == array.size()) return texts;
  return OtherValue{"a list of different types"};
}

ConfigValue value_of(const toml::node& node) {
  if (const auto* value = node.as_boolean()) return value->get();
  if (const auto* value = node.as_integer()) return int64_t{value->get()};
  if (const auto* value = node.as_floating_point()) return value->get();
  if (const auto* value = node.as_string()) return value->get();
  if (const auto* array = node.as_array()) {
    return list_of(*array);
  }
  return OtherValue{node.is_table() ? "a table" : "a date or a time"};
}

void flatten(const toml::table& table, const std::string& prefix, size_t level, const std::string& path,
             std::vector<TomlEntry>& entries) {
  if (level > kMaxKeyParts)
    throw ConfigError("{} nests tables deeper than {} levels. docs/reference/config.md lists all keys.",
                      entries.back().where, kMaxKeyParts);
  struct Item {
    toml::source_position at;
    std::string_view name;
    const toml::node* node;
  };
  std::vector<Item> items;
  for (const auto& [name, node] : table)
    items.push_back({name.source().begin ? name.source().begin : node.source().begin, name.str(), &node});
  // toml++ sorts the keys by name, but the error must report the first mistake in the file.
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.at < b.at; });
  entries.reserve(entries.size() + items.size());
  for (const Item& item : items) {
    const std::string key = prefix + quoted_key(item.name);
    entries.push_back({key, value_of(*item.node), item.node->is_table(),
                       fmt::format("{}:{}:{}", path, item.at.line, item.at.column)});
    if (const toml::table* inner = item.node->as_table()) flatten(*inner, key + ".", level + 1, path, entries);
  }
}

[[noreturn]] void refuse(const toml::parse_error& error, const std::string& path) {
  const auto at = error.source().begin;
  std::string_view problem = error.description();
  const auto drop = [&](std::string_view opening) {
    if (problem.starts_with(opening)) problem.remove_prefix(opening.size());
  };
  drop("Error while parsing ");
  if (const size_t internals = problem.find(" (TOML_"); internals != std::string_view::npos)
    problem = problem.substr(0, internals);
  if (problem.find("cannot redefine") != std::string_view::npos) {
    drop("key-value pair: ");
    drop("table header: ");
    throw ConfigError("{}:{}:{} repeats a definition: {}. Keep one of them.", path, at.line, at.column,
                      files::printable(problem, 300));
  }
  // The library's text is "floating-point: '1e999' could not be interpreted as a value".
  for (const std::string_view kind : {"floating-point: ", "decimal integer: ", "hexadecimal integer: "}) {
    const size_t end = problem.rfind("' ");
    if (!problem.starts_with(kind) || end == std::string_view::npos) continue;
    throw ConfigError("{}:{}:{} has {}', a number that 64 bits cannot hold. Use another one.", path, at.line, at.column,
                      files::printable(problem.substr(kind.size(), end - kind.size()), 100));
  }
  throw ConfigError("{}:{}:{} is not TOML: {}.", path, at.line, at.column, files::printable(problem, 300));
}

toml::table parse(const std::string& text, const std::string& path) {
  try {
    return toml::parse(std::string_view(text), std::string_view(path));
  } catch (const toml::parse_error& error) {
    refuse(error, path);
  }
}

}  // namespace

std::vector<TomlEntry> read_toml(const std::string& path, std::string_view wanted) {
  const std::string text = read_text(path, wanted);
  check_utf8(path, text);
  if (const Refused refused = first_refused(text); refused.line > 0)
    throw ConfigError("{}:{} {}.", path, refused.line, refused.problem);
  std::vector<TomlEntry> entries;
  flatten(parse(text, path), "", 1, path, entries);
  if (entries.empty()) throw ConfigError("{} is empty: it has no keys. docs/reference/config.md lists them.", path);
  return entries;
}

std::optional<ConfigValue> parse_toml_value(std::string_view text) {
  if (first_refused(text).line > 0) return std::nullopt;
  try {
    const toml::table table = toml::parse(std::string_view("value = " + std::string(text)));
    if (table.size() != 1 || !table.contains("value")) return std::nullopt;
    return value_of(*table.get("value"));
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

}  // namespace slipstream

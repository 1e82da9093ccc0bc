// SPDX-License-Identifier: Apache-2.0
// Reads TOML through toml++ (the only file that includes it).

#include "engine/config/toml.h"

#include <toml++/toml.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/base/utf8.h"

namespace slipstream {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

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

std::string quoted_key(std::string_view part) {
  const auto is_bare = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-'; };
  if (!part.empty() && std::all_of(part.begin(), part.end(), is_bare)) return std::string(part);
  return to_toml(ConfigValue(std::string(part)));
}

ConfigValue value_of(const toml::node& node) {
  if (const auto* value = node.as_boolean()) return value->get();
  if (const auto* value = node.as_integer()) return int64_t{value->get()};
  if (const auto* value = node.as_floating_point()) return value->get();
  if (const auto* value = node.as_string()) return value->get();
  if (const auto* array = node.as_array()) {
    std::vector<int64_t> items;
    for (const toml::node& item : *array) {
      if (!item.is_integer()) return OtherValue{"a list that does not consist of integers"};
      items.push_back(item.as_integer()->get());
    }
    return items;
  }
  return OtherValue{node.is_table() ? "a table" : "a date or a time"};
}

void flatten(const toml::table& table, const std::string& prefix, const std::string& path,
             std::vector<TomlEntry>& entries) {
  const size_t first = entries.size();
  struct Item {
    toml::source_position at;
    const toml::node* node;
    TomlEntry entry;
  };
  std::vector<Item> items;
  for (const auto& [name, node] : table) {
    const toml::source_position at = name.source().begin ? name.source().begin : node.source().begin;
    items.push_back({at,
                     &node,
                     {prefix + quoted_key(name.str()), value_of(node), node.is_table(),
                      fmt::format("{}:{}:{}", path, at.line, at.column)}});
  }
  // toml++ sorts by name, but the error must report the first mistake of the file.
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.at < b.at; });
  entries.reserve(first + items.size());
  for (Item& item : items) {
    const std::string key = item.entry.key;
    entries.push_back(std::move(item.entry));
    if (const toml::table* inner = item.node->as_table()) flatten(*inner, key + ".", path, entries);
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
    throw ConfigError("{}:{}:{} repeats a definition: {}. Keep one of them.", path, at.line, at.column, problem);
  }
  throw ConfigError("{}:{}:{} is not TOML: {}.", path, at.line, at.column, problem.substr(0, 300));
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
  std::vector<TomlEntry> entries;
  flatten(parse(text, path), "", path, entries);
  if (entries.empty()) throw ConfigError("{} is empty: it has no keys. docs/reference/config.md lists them.", path);
  return entries;
}

std::optional<ConfigValue> parse_toml_value(std::string_view text) {
  try {
    const toml::table table = toml::parse(std::string_view("value = " + std::string(text)));
    if (table.size() != 1 || !table.contains("value")) return std::nullopt;
    return value_of(*table.get("value"));
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

}  // namespace slipstream

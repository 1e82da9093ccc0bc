// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads TOML files as a flat list of keys, values and places.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/config/field.h"
#include "engine/config/nearest.h"

namespace slipstream {

/// One key of a file, in the order of the file. `where` is "path:line:column".
struct TomlEntry {
  std::string key;  // "table.key"; parts that are not bare TOML keys are quoted
  ConfigValue value;
  bool is_table = false;  // a table header, whose keys follow as entries of their own
  std::string where;
};

/// Reads at most 1 MiB of UTF-8 TOML (with or without a byte order mark, any line ends), with keys of at most 16 parts.
/// `wanted` is the expected kind of file, with an example, for errors about a wrong path. Throws: ConfigError with the
/// place for any other file, including an empty one.
std::vector<TomlEntry> read_toml(const std::string& path, std::string_view wanted);

/// Parses `text` as one TOML value. Returns none if it is not one. Pure.
std::optional<ConfigValue> parse_toml_value(std::string_view text);

/// Sets the field that `key` names. Changes only `config`. Throws: ConfigError "where unknown key 'k', did you mean
/// 'n'?" or "where key needs ..., got ...".
template <typename Config>
void set_field(const std::vector<Field<Config>>& fields, Config& config, const std::string& where,
               const std::string& key, const ConfigValue& value) {
  std::vector<std::string_view> keys;
  for (const Field<Config>& field : fields) {
    if (field.key == key) {
      try {
        field.set(config, value);
      } catch (const ConfigError& error) {
        const std::string_view problem = error.what();
        throw ConfigError("{} {} {}{}", where, key, problem, problem.ends_with('?') ? "" : ".");
      }
      return;
    }
    keys.push_back(field.key);
  }
  const std::string near = nearest(key, keys);
  throw ConfigError("{} unknown key '{}'{}", where, files::printable(key, 200),
                    near.empty() ? ". docs/reference/config.md lists all keys." : ", did you mean '" + near + "'?");
}

/// Sets a field for every entry of a file. Throws: ConfigError for the first entry that has no field or a wrong value.
template <typename Config>
void set_fields(const std::vector<Field<Config>>& fields, Config& config, const std::vector<TomlEntry>& entries) {
  std::vector<std::string_view> tables;
  for (const Field<Config>& field : fields) {
    for (size_t dot = field.key.find('.'); dot != std::string::npos; dot = field.key.find('.', dot + 1))
      tables.push_back(std::string_view(field.key).substr(0, dot));
  }
  const auto is_table = [&](std::string_view name) {
    for (std::string_view table : tables) {
      if (table == name) return true;
    }
    return false;
  };
  for (const TomlEntry& entry : entries) {
    if (entry.is_table && !is_table(entry.key)) {
      const std::string near = nearest(entry.key, tables);
      throw ConfigError(
          "{} unknown table [{}]{}", entry.where, files::printable(entry.key, 200),
          near.empty() ? ". docs/reference/config.md lists all tables." : ", did you mean [" + near + "]?");
    }
    if (!entry.is_table && is_table(entry.key))
      throw ConfigError("{} {} is a table. Write [{}] and its keys below.", entry.where, entry.key, entry.key);
    if (!entry.is_table) set_field(fields, config, entry.where, entry.key, entry.value);
  }
}

}  // namespace slipstream

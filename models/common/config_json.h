// SPDX-License-Identifier: Apache-2.0
#pragma once
// The keys of a config.json. Each one is read, is known to change no arithmetic, or is refused with its value.

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "engine/base/json.h"

namespace slipstream::models {

/// Keys that change no result of a decoder, with the reason.
struct NeutralKeys {
  const char* reason;
  std::vector<std::string_view> keys;
};
std::span<const NeutralKeys> neutral_keys();

/// Keys with one supported value in all families.
struct FixedKey {
  std::string_view key;
  Json value;
};
std::span<const FixedKey> fixed_keys();

/// Returns 8 as 8.0, because the library warns about factors that are no real numbers.
template <typename Real>
std::string with_point(Real value) {
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

/// A config.json that remembers which keys were read. All readers throw CheckpointError that names the key and its
/// value. Borrows its arguments.
class ConfigJson {
 public:
  ConfigJson(const Json& json, const std::string& where) : json_(json), where_(where) {}

  [[noreturn]] void fail(std::string_view key, const std::string& problem) const;
  /// Returns the value as text for errors.
  std::string shown(std::string_view key) const;
  /// `alias` has the meaning of `key`. It is read where `key` is absent, and must not contradict it.
  void alias(std::string_view key, std::string_view alias);
  /// Returns null if the key is absent or null.
  const Json* find(std::string_view key) const;
  /// Returns true also for a key whose value is null, because the library's default applies only without the key.
  bool has(std::string_view key) const { return json_.find(key) != nullptr; }

  int64_t whole(std::string_view key, std::optional<int64_t> absent = {}, int64_t most = kMaxSize,
                int64_t least = 1) const;
  double real(std::string_view key, double absent) const;
  /// Returns a probability below 1.
  double rate(std::string_view key, double absent) const;
  bool boolean(std::string_view key, bool absent) const;
  std::string text(std::string_view key, std::string_view absent) const;
  std::vector<std::string> texts(std::string_view key) const;
  void need(std::string_view key, bool is_right, std::string_view right) const;

  /// Refuses the keys that were not read and may change arithmetic. Three kinds of keys may not: those with null and
  /// empty values, those whose names begin with an underscore, in which the library keeps its own notes, and names of
  /// versions. Returns a note for each of the last kind.
  std::vector<std::string> finish() const;

  /// Larger sizes indicate a damaged file.
  static constexpr int64_t kMaxSize = int64_t{1} << 24;

 private:
  const Json& json_;
  const std::string& where_;
  std::vector<std::pair<std::string_view, std::string_view>> aliases_;
  mutable std::set<std::string_view> read_;
};

}  // namespace slipstream::models

// SPDX-License-Identifier: Apache-2.0
#pragma once
// A value of a tokenizer's JSON document, with its path for errors.

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/json.h"

namespace slipstream::data {

inline constexpr int64_t kIdsMax = 1 << 24;

/// A value with its path. Borrows the document and the name of its file. All readers throw DataError with the file, the
/// path and the problem.
class TokenizerNode {
 public:
  TokenizerNode(const Json& json, std::string path, const std::string& where)
      : json_(&json), path_(std::move(path)), where_(where) {}

  [[noreturn]] void fail(const std::string& problem) const {
    throw DataError(
        "[data] {}: {} {}. Use another tokenizer, or token shards of this one (docs/how-to/token-shards.md).", where_,
        path_, problem);
  }
  [[noreturn]] void unsupported(std::string_view supported) const {
    const std::string value = json_->dump();
    fail(fmt::format("= {} is not supported, need {}", files::printable(value, 80), supported));
  }
  const Json& json() const { return *json_; }
  const std::string& path() const { return path_; }
  const std::string& where() const { return where_; }
  bool is_null() const { return json_->is_null(); }

  /// Returns the member, or null.
  TokenizerNode operator[](std::string_view key) const {
    static const Json null;
    const Json* member = need(json_->is_object(), "an object").find(key);
    return {member != nullptr ? *member : null, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key),
            where_};
  }
  std::vector<TokenizerNode> items() const {
    std::vector<TokenizerNode> nodes;
    for (const Json& item : need(json_->is_array(), "an array").as_array())
      nodes.emplace_back(item, fmt::format("{}[{}]", path_, nodes.size()), where_);
    return nodes;
  }
  const std::string& string() const { return need(json_->is_string(), "a string").as_string(); }
  bool boolean(bool absent) const { return is_null() ? absent : need(json_->is_bool(), "true or false").as_bool(); }
  int64_t id() const {
    const auto refuse = [&](auto value) { fail(fmt::format("= {} is not an id, need 0 to {}", value, kIdsMax - 1)); };
    if (json_->is_number() && !json_->is_int()) refuse(json_->as_double());
    const int64_t value = need(json_->is_int(), "an integer").as_int();
    if (value < 0 || value >= kIdsMax) refuse(value);
    return value;
  }
  /// Refuses members that have no meaning here.
  void allow(std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : need(json_->is_object(), "an object").as_object())
      if (std::find(known.begin(), known.end(), key) == known.end())
        TokenizerNode(
            value, path_.empty() ? files::printable(key, 80) : fmt::format("{}.{}", path_, files::printable(key, 80)),
            where_)
            .fail("is an unknown key");
  }
  /// Refuses every value except null and, if it is given, one other value.
  void require_null(std::string_view also = "") const {
    if (is_null() || (json_->is_string() && json_->as_string() == also)) return;
    unsupported("null");
  }
  std::string type() const { return (*this)["type"].string(); }

 private:
  const Json& need(bool right, std::string_view what) const {
    if (!right) fail(fmt::format("is {}, need {}", is_null() ? "missing" : json_->type_name(), what));
    return *json_;
  }

  const Json* json_;
  std::string path_;
  const std::string& where_;
};

}  // namespace slipstream::data

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Strict reader of the small JSON documents beside data and weights. Errors name the document, the key and the required
// value.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/files.h"
#include "engine/base/json.h"

namespace slipstream {

struct Document {
  std::string_view text;
  std::string where;  // the document's name in errors: "PATH" or "the header of PATH"
  files::Owner owner = files::Owner::data;
};

/// Returns the one object of the document. Throws: the owner's error for a text that is not a JSON object or that
/// Json::parse refuses.
Json parse_object(const Document& document);

/// The members of one object of a document. Borrows the document and the object.
class Fields {
 public:
  /// `place` names the object in errors. Throws: the owner's error if `object` is not an object.
  Fields(const Document& document, const Json& object, std::string place);

  /// Throws: the owner's error with the document's name followed by `problem`.
  [[noreturn]] void fail(const std::string& problem) const;
  /// Throws: the owner's error if a member is not one of `known`.
  void allow_only(std::initializer_list<std::string_view> known) const;

  bool has(std::string_view key) const { return object_.find(key) != nullptr; }
  /// Each throws the owner's error if the member is missing or has another type. A natural number is 0 or more.
  const std::string& string(std::string_view key) const;
  uint64_t natural(std::string_view key) const;
  std::vector<std::string> strings(std::string_view key) const;
  std::vector<uint64_t> naturals(std::string_view key) const;

 private:
  const Json& get(std::string_view key, const char* need, bool (Json::*is)() const) const;
  [[noreturn]] void wrong_type(std::string_view key, const Json& value, const char* need) const;

  const Document& document_;
  const Json& object_;
  std::string place_;
};

}  // namespace slipstream

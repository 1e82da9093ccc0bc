// SPDX-License-Identifier: Apache-2.0
// Reads small JSON documents. Errors have the type that belongs to the document's owner.

#include "engine/base/document.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace slipstream {

Json parse_object(const Document& document) {
  const size_t first = document.text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos)
    files::refuse(document.owner,
                  fmt::format("{} is empty, need a JSON object. Regenerate or restore the file.", document.where));
  if (document.text[first] != '{')
    files::refuse(document.owner, fmt::format("{} does not begin with {{ at byte {}. Regenerate or restore the file.",
                                              document.where, first));
  try {
    return Json::parse(document.text, document.where);
  } catch (const DataError& error) {
    files::refuse(document.owner, fmt::format("{} Regenerate or restore the file.", error.what()));
  }
}

Fields::Fields(const Document& document, const Json& object, std::string place)
    : document_(document), object_(object), place_(std::move(place)) {
  if (!object.is_object()) fail(fmt::format("has {} as {}, need an object", object.type_name(), place_));
}

void Fields::fail(const std::string& problem) const {
  files::refuse(document_.owner, fmt::format("{} {}. Regenerate or restore the file.", document_.where, problem));
}

void Fields::allow_only(std::initializer_list<std::string_view> known) const {
  for (const auto& [key, value] : object_.as_object())
    if (std::find(known.begin(), known.end(), key) == known.end())
      fail(fmt::format("has the unknown key {} in {}", files::shown(key), place_));
}

void Fields::wrong_type(std::string_view key, const Json& value, const char* need) const {
  fail(fmt::format("has {} in \"{}\" of {}, need {}", value.type_name(), key, place_, need));
}

const Json& Fields::get(std::string_view key, const char* need, bool (Json::*is)() const) const {
  const Json* value = object_.find(key);
  if (value == nullptr) fail(fmt::format("lacks the key \"{}\" in {}", key, place_));
  if (!(value->*is)()) wrong_type(key, *value, need);
  return *value;
}

const std::string& Fields::string(std::string_view key) const {
  return get(key, "a string", &Json::is_string).as_string();
}

uint64_t Fields::natural(std::string_view key) const {
  const int64_t value = get(key, "a natural number", &Json::is_int).as_int();
  if (value < 0) fail(fmt::format("has {} in \"{}\" of {}, need a natural number", value, key, place_));
  return static_cast<uint64_t>(value);
}

std::vector<std::string> Fields::strings(std::string_view key) const {
  std::vector<std::string> out;
  for (const Json& item : get(key, "an array", &Json::is_array).as_array()) {
    if (!item.is_string()) wrong_type(key, item, "a string");
    out.push_back(item.as_string());
  }
  return out;
}

std::vector<uint64_t> Fields::naturals(std::string_view key) const {
  std::vector<uint64_t> out;
  for (const Json& item : get(key, "an array", &Json::is_array).as_array()) {
    if (!item.is_int()) wrong_type(key, item, "a natural number");
    if (item.as_int() < 0)
      fail(fmt::format("has {} in \"{}\" of {}, need a natural number", item.as_int(), key, place_));
    out.push_back(static_cast<uint64_t>(item.as_int()));
  }
  return out;
}

}  // namespace slipstream

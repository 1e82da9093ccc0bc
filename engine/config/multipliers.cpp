// SPDX-License-Identifier: Apache-2.0
// Reads patterns and their multipliers.

#include "engine/config/multipliers.h"

#include <charconv>
#include <sstream>

#include "engine/base/check.h"
#include "engine/base/files.h"

namespace slipstream {
namespace {

constexpr double kMax = 1e6;

[[noreturn]] void refuse(const std::string& row, const std::string& problem) {
  throw ConfigError("optimizer.multipliers: the row {} {}. Write \"PATTERN learning_rate=X weight_decay=Y\".",
                    files::shown(row), problem);
}

UpdateMultipliers parse_row(const std::string& row) {
  std::istringstream words(row);
  UpdateMultipliers multipliers;
  words >> multipliers.pattern;
  if (multipliers.pattern.empty() || multipliers.pattern.find('=') != std::string::npos)
    refuse(row, "has no pattern of a tensor's name");
  bool has_rate = false;
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals), text = equals == std::string::npos ? "" : word.substr(equals + 1);
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || error != std::errc() || end != text.data() + text.size() || !(value >= 0 && value <= kMax))
      refuse(row, fmt::format("has {}, need a number from 0 to {}", files::shown(word), kMax));
    if (key == "learning_rate" && !has_rate) {
      multipliers.learning_rate = value;
      has_rate = true;
    } else if (key == "weight_decay" && !multipliers.weight_decay) {
      multipliers.weight_decay = value;
    } else {
      refuse(row, fmt::format("has {}, need learning_rate or weight_decay, each once", files::shown(word)));
    }
  }
  if (!has_rate && !multipliers.weight_decay) refuse(row, "has no multiplier");
  return multipliers;
}

}  // namespace

std::vector<UpdateMultipliers> parse_multipliers(const std::vector<std::string>& rows) {
  std::vector<UpdateMultipliers> all;
  for (const std::string& row : rows) all.push_back(parse_row(row));
  return all;
}

}  // namespace slipstream

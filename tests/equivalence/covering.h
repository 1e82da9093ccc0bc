// SPDX-License-Identifier: Apache-2.0
#pragma once
// Covering arrays: few rows in which every legal pair of settings of different factors occurs (Cohen et al. 1997, "The
// AETG system").

#include <functional>
#include <set>
#include <utility>
#include <vector>

namespace slipstream::equivalence {

/// One setting of one factor, by index.
struct Setting {
  size_t factor = 0, level = 0;
  auto operator<=>(const Setting&) const = default;
};
/// The level of every factor.
using Row = std::vector<size_t>;
constexpr size_t kOpen = SIZE_MAX;  // a factor whose level has not been chosen yet

using SettingPair = std::pair<Setting, Setting>;  // the lower factor first

/// Returns all pairs of settings of different factors, in order.
inline std::vector<SettingPair> all_pairs(const std::vector<size_t>& levels) {
  std::vector<SettingPair> pairs;
  for (size_t f = 0; f < levels.size(); ++f)
    for (size_t g = f + 1; g < levels.size(); ++g)
      for (size_t i = 0; i < levels[f]; ++i)
        for (size_t j = 0; j < levels[g]; ++j) pairs.push_back({{f, i}, {g, j}});
  return pairs;
}

inline bool holds(const Row& row, const SettingPair& pair) {
  return row[pair.first.factor] == pair.first.level && row[pair.second.factor] == pair.second.level;
}

/// Pure. Returns rows that contain every pair of `pairs`; none of these pairs is rejected by `may_be`, which is also
/// asked about incomplete rows. The search is greedy: a row begins with the first pair that no row contains, and every
/// other factor takes the level that covers most of the missing pairs, the first among equals. The result is the same
/// on every machine. A row that cannot be completed is left out.
inline std::vector<Row> covering_rows(const std::vector<size_t>& levels, const std::vector<SettingPair>& pairs,
                                      const std::function<bool(const Row&)>& may_be) {
  std::set<SettingPair> missing(pairs.begin(), pairs.end());
  std::vector<Row> rows;
  while (!missing.empty()) {
    const SettingPair first = *missing.begin();
    missing.erase(missing.begin());
    Row row(levels.size(), kOpen);
    row[first.first.factor] = first.first.level;
    row[first.second.factor] = first.second.level;
    bool closed = may_be(row);
    for (size_t f = 0; f < levels.size() && closed; ++f) {
      if (row[f] != kOpen) continue;
      size_t best = kOpen, most = 0;
      for (size_t level = 0; level < levels[f]; ++level) {
        row[f] = level;
        if (!may_be(row)) continue;
        size_t met = 1;  // so that a level that covers nothing new is better than none
        for (size_t g = 0; g < levels.size(); ++g)
          if (g != f && row[g] != kOpen)
            met += missing.count(g < f ? SettingPair{{g, row[g]}, {f, level}} : SettingPair{{f, level}, {g, row[g]}});
        if (met > most) best = level, most = met;
      }
      row[f] = best;
      closed = best != kOpen;
    }
    if (!closed) continue;
    std::erase_if(missing, [&](const SettingPair& pair) { return holds(row, pair); });
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace slipstream::equivalence

// SPDX-License-Identifier: Apache-2.0
// Computes the edit distance between names.

#include "engine/config/nearest.h"

#include <algorithm>
#include <cstdint>

namespace slipstream {
namespace {

size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::string_view tail(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

}  // namespace

std::string nearest(std::string_view name, const std::vector<std::string_view>& candidates) {
  if (name.size() > 100) return "";
  size_t best = std::max<size_t>(2, name.size() / 3) + 1;
  std::string_view found;
  for (std::string_view candidate : candidates) {
    size_t distance = edits(name, candidate);
    if (tail(candidate) == tail(name)) distance = std::min<size_t>(distance, 1);
    if (distance < best) {
      best = distance;
      found = candidate;
    }
  }
  return std::string(found);
}

}  // namespace slipstream

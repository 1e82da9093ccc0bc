// SPDX-License-Identifier: Apache-2.0
// Enumerates the runs that can follow each other, and joins them into few sequences.

#include "engine/plan/calendar.h"

#include <algorithm>
#include <deque>
#include <numeric>

namespace slipstream {

const char* name_of(PlanKind kind) {
  switch (kind) {
    case PlanKind::train:
      return "train";
    case PlanKind::evaluate:
      return "evaluate";
    case PlanKind::prime:
      return "prime";
    case PlanKind::save:
      return "save";
    case PlanKind::keep:
      return "keep";
  }
  return "?";
}

Calendar::Runs Calendar::rows_after(int64_t n) const {
  Runs rows;
  for (size_t row = 0; row < rows_.size(); ++row)
    if (rows_[row].falls_on(n)) rows.push_back(row);
  std::stable_sort(rows.begin(), rows.end(), [&](size_t a, size_t b) { return rows_[a].when < rows_[b].when; });
  return rows;
}

Calendar::Runs Calendar::step(int64_t n, const std::function<bool(size_t row)>& asks) const {
  Runs rows = rows_after(n);
  std::erase_if(
      rows, [&](size_t row) { return is_at_rest(rows_[row].when) || (rows_[row].when == When::asked && !asks(row)); });
  return rows;
}

std::vector<Calendar::Place> Calendar::next(const Place& place) const {
  std::vector<Place> places;
  bool is_after = false;
  for (int64_t n = place.n;; ++n, is_after = true)
    for (size_t row : rows_after(n)) {
      const When when = rows_[row].when;
      // Runs between two steps repeat in any order.
      const bool repeats = n == place.n && when == When::between && rows_[place.row].when == When::between;
      if (is_after || repeats) places.push_back({n, row});
      if (is_after && (when == When::start || when == When::step)) return places;
      is_after |= n == place.n && row == place.row;
    }
}

std::set<Calendar::Runs> Calendar::windows() const {
  int64_t period = 1;
  for (const Cadence& row : rows_) period = std::lcm(period, row.every);
  const auto rests = [&](const Place& place) { return is_at_rest(rows_[place.row].when); };
  std::set<Runs> windows;
  for (int64_t n = 0; n <= period; ++n)
    for (size_t row : rows_after(n)) {
      const Place first{n, row};
      for (const Place& second : next(first)) {
        windows.insert({first.row, second.row});
        for (const Place& third : next(second))
          if (!rests(first) && !rests(second) && !rests(third)) windows.insert({first.row, second.row, third.row});
      }
    }
  return windows;
}

std::vector<Calendar::Runs> Calendar::ended_by_last(const Runs& runs, const std::set<Runs>& windows) const {
  std::vector<Runs> ended;
  for (std::ptrdiff_t size = 2; size <= std::min<std::ptrdiff_t>(3, std::ssize(runs)); ++size) {
    const Runs window(runs.end() - size, runs.end());
    const bool rests =
        std::any_of(window.begin(), window.end(), [&](size_t row) { return is_at_rest(rows_[row].when); });
    if (size == 3 && rests) break;
    if (!windows.contains(window)) return {};
    ended.push_back(window);
  }
  return ended;
}

std::vector<Calendar::Runs> Calendar::sequences() const {
  const std::set<Runs> all = windows();
  std::set<Runs> left = all;
  std::vector<Runs> sequences;
  /// Returns the shortest continuation whose last run ends a window that is left, or nothing if there is none.
  const auto continued = [&](const Runs& runs) -> Runs {
    std::deque<Runs> open{runs};
    std::set<Runs> seen;
    for (; !open.empty(); open.pop_front())
      for (size_t i = 0; i < rows_.size(); ++i) {
        Runs longer = open.front();
        longer.push_back((longer.back() + i) % rows_.size());  // repeats, which need no way back, come first
        const std::vector<Runs> ended = ended_by_last(longer, all);
        if (ended.empty()) continue;
        size_t found = 0;
        for (const Runs& window : ended) found += left.erase(window);
        if (found > 0) return longer;
        if (seen.insert(ended.back()).second) open.push_back(std::move(longer));
      }
    return {};
  };
  while (!left.empty()) {
    // No run leads to a run before the first step.
    const auto start =
        std::find_if(left.begin(), left.end(), [&](const Runs& runs) { return rows_[runs[0]].when == When::start; });
    Runs runs{(start == left.end() ? left.begin() : start)->front()};
    for (Runs longer = continued(runs); !longer.empty(); longer = continued(runs)) runs = std::move(longer);
    sequences.push_back(std::move(runs));
  }
  return sequences;
}

}  // namespace slipstream

// SPDX-License-Identifier: Apache-2.0
// The windows of a calendar against every choice that a run can make, and the sequences that cover them.

#include "engine/plan/calendar.h"

#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "engine/base/philox.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

using Runs = Calendar::Runs;

bool rests(const std::vector<Cadence>& rows, const Runs& runs) {
  bool any = false;
  for (size_t row : runs) any |= rows[row].when == When::start || rows[row].when == When::between;
  return any;
}

/// Everything that may run after n steps, as a run would decide it: at most two of the rows that run at rest, and any
/// of the rows that may be asked for.
std::vector<Runs> choices_after(const std::vector<Cadence>& rows, int64_t n) {
  std::vector<Runs> chosen{{}};
  const auto falls = [&](size_t row, When when) {
    return rows[row].when == when && n % rows[row].every == rows[row].at;
  };
  for (size_t row = 0; row < rows.size() && n == 0; ++row)
    if (rows[row].when == When::start) chosen[0].push_back(row);
  if (n > 0)
    for (size_t one = 0; one < rows.size(); ++one) {
      if (!falls(one, When::between)) continue;
      chosen.push_back({one});
      for (size_t other = 0; other < rows.size(); ++other)
        if (falls(other, When::between)) chosen.push_back({one, other});
    }
  for (size_t row = 0; row < rows.size(); ++row)
    if (falls(row, When::asked))
      for (size_t i = 0, count = chosen.size(); i < count; ++i) {
        chosen.push_back(chosen[i]);
        chosen.back().push_back(row);
      }
  for (size_t row = 0; row < rows.size(); ++row)
    for (Runs& runs : chosen)
      if (falls(row, When::step)) runs.push_back(row);
  return chosen;
}

void add_windows(const std::vector<Cadence>& rows, const Runs& runs, std::set<Runs>& windows) {
  for (size_t end = 2; end <= runs.size(); ++end)
    for (size_t size : {2, 3}) {
      if (size > end) continue;
      const Runs window(runs.begin() + static_cast<int>(end - size), runs.begin() + static_cast<int>(end));
      if (size == 2 || !rests(rows, window)) windows.insert(window);
    }
}

/// The windows of all choices in three consecutive steps. A step has at least one run, so no triple has more steps.
std::set<Runs> windows_of_choices(const std::vector<Cadence>& rows, int64_t period) {
  std::set<Runs> windows;
  for (int64_t n = 0; n <= period; ++n)
    for (const Runs& first : choices_after(rows, n))
      for (const Runs& second : choices_after(rows, n + 1))
        for (const Runs& third : choices_after(rows, n + 2)) {
          Runs runs = first;
          runs.insert(runs.end(), second.begin(), second.end());
          runs.insert(runs.end(), third.begin(), third.end());
          add_windows(rows, runs, windows);
        }
  return windows;
}

std::string letters(const std::vector<Runs>& sequences, const char* names) {
  std::string text;
  for (const Runs& runs : sequences) {
    if (!text.empty()) text += ' ';
    for (size_t row : runs) text += names[row];
  }
  return text;
}

constexpr int64_t kPeriod = 6;  // of cadences of 1, 2 and 3 steps

std::vector<Cadence> drawn(const Philox& random, uint64_t seed) {
  uint64_t count = 0;
  const auto draw = [&](uint64_t below) { return static_cast<int64_t>(random.below(seed * 100 + count++, below)); };
  std::vector<Cadence> rows{{When::step}};
  for (const auto& [when, most] : {std::pair{When::start, 2}, {When::between, 3}, {When::asked, 3}, {When::step, 3}})
    for (int64_t left = draw(static_cast<uint64_t>(most)); left > 0; --left) {
      const int64_t every = when == When::start ? 1 : 1 + draw(3);
      rows.push_back({when, every, draw(static_cast<uint64_t>(every))});
    }
  return rows;
}

}  // namespace

TEST_CASE("a calendar's windows are those of every choice of a run, and its sequences have no others", "[calendar]") {
  constexpr uint64_t kSeeds = 60;
  const Philox random(36, "cadences");
  size_t windows = 0, runs = 0;
  std::printf("  seeds from 0 of the stream \"cadences\"\n");
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    CAPTURE(seed);
    const std::vector<Cadence> rows = drawn(random, seed);
    const Calendar calendar(rows);
    const std::set<Runs> expected = windows_of_choices(rows, kPeriod);
    CHECK(calendar.windows() == expected);
    std::set<Runs> covered;
    for (const Runs& sequence : calendar.sequences()) {
      add_windows(rows, sequence, covered);
      runs += sequence.size();
    }
    CHECK(covered == expected);
    windows += expected.size();
    // These are the runs that a rank issues, for steps with random wishes.
    Runs issued;
    for (int64_t n = 0; n < 200; ++n) {
      const Runs step = calendar.step(
          n, [&](size_t row) { return random.below(seed << 32 | static_cast<uint64_t>(n) << 8 | row, 2) == 1; });
      issued.insert(issued.end(), step.begin(), step.end());
    }
    std::set<Runs> seen;
    add_windows(rows, issued, seen);
    for (const Runs& window : seen) CHECK(expected.contains(window));
  }
  CHECK(runs < 3 * windows);
  std::printf("  COUNTED %zu windows in sequences of %zu runs\n", windows, runs);
}

TEST_CASE("the sequences of steps, evaluations and snapshots are short", "[calendar]") {
  const std::vector<Cadence> plain{{When::step}, {When::between}, {When::start}};
  CHECK(letters(Calendar(plain).sequences(), "TEP") == "PTTTEET");
  const std::vector<Cadence> twice{
      {When::step, 2, 0}, {When::between, 2, 0}, {When::start}, {When::step, 2, 1}, {When::between, 2, 1}};
  CHECK(letters(Calendar(twice).sequences(), "tePTE") == "PtTtTeetEET");
  std::vector<Cadence> saving = plain;
  saving.push_back({When::asked});
  CHECK(letters(Calendar(saving).sequences(), "TEPS") == "PSTTTEESTSTTSTET PT");
}

TEST_CASE("a plan of every 500th step needs no sequence of 500 steps", "[calendar]") {
  const Calendar calendar({{When::step}, {When::between}, {When::start}, {When::asked}, {When::step, 500, 499}});
  const auto asks = [](size_t) { return true; };
  CHECK(calendar.step(498, asks) == Runs{3, 0});
  CHECK(calendar.step(499, asks) == Runs{3, 0, 4});
  CHECK(calendar.step(999, asks) == Runs{3, 0, 4});
  size_t runs = 0;
  for (const Runs& sequence : calendar.sequences()) runs += sequence.size();
  CHECK(runs < 40);
}

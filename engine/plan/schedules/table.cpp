// SPDX-License-Identifier: Apache-2.0
// Writes and reads schedules: a table of stages and time for people, CSV for other programs.

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "engine/plan/schedules/schedule.h"

namespace slipstream {
namespace {

constexpr const char* kHeader = "stage,position,pass,chunk,micro_batch";
/// If the parts do not go round the stages, rows name the part instead of the chunk.
constexpr const char* kHeaderOfParts = "stage,position,pass,part,micro_batch";

/// Returns a line of unknown content for an error message: at most 80 characters, with unprintable ones replaced.
std::string shown(const std::string& line) {
  constexpr size_t kShown = 80;
  std::string text;
  for (char c : line.substr(0, kShown))
    text += std::isprint(static_cast<unsigned char>(c)) ? fmt::format("{}", c)
                                                        : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return line.size() > kShown ? text + "..." : text;
}

/// A row in the format of a header. Any other line is none, and so is a number that is too large.
struct Row {
  int stage = -1, position = -1, place = -1, micro_batch = -1;  // place is the chunk or the part
  char pass = '?';
};
std::optional<Row> row_of(const std::string& line) {
  Row row;
  const char *at = line.data(), *end = at + line.size();
  const auto number = [&](int& value) {
    const auto [next, error] = std::from_chars(at, end, value);
    at = next;
    return error == std::errc{};
  };
  const auto letter = [&](char& value) { return at < end && (value = *at++, true); };
  const auto comma = [&] { return at < end && *at++ == ','; };
  const bool read = number(row.stage) && comma() && number(row.position) && comma() && letter(row.pass) && comma() &&
                    number(row.place) && comma() && number(row.micro_batch) && at == end;
  if (!read || (row.pass != 'F' && row.pass != 'B' && row.pass != 'W')) return {};
  return row;
}

char letter_of(Pass pass) { return pass == Pass::forward ? 'F' : pass == Pass::backward ? 'B' : 'W'; }

}  // namespace

std::string schedule_table(const PipelineSchedule& schedule, const Played& played, int64_t tick_ns, size_t ends) {
  const auto column = [&](int64_t ns) { return static_cast<size_t>((ns + tick_ns / 2) / tick_ns); };
  const auto label = [&](const Action& action) {
    return schedule.shape.virtual_stages > 1
               ? fmt::format("{}{}.{}", letter_of(action.pass), action.micro_batch, action.chunk)
               : fmt::format("{}{}", letter_of(action.pass), action.micro_batch);
  };
  size_t width = 0;
  for (const auto& order : schedule.stages)
    for (const Action& action : order) width = std::max(width, label(action).size());
  const size_t columns = column(played.makespan_ns), left_out = ends > 0 && columns > 2 * ends ? columns - 2 * ends : 0;
  std::string table;
  for (size_t s = 0; s < schedule.stages.size(); ++s) {
    std::vector<std::string> cells(columns - left_out, ".");
    for (size_t i = 0; i < played.stages[s].size(); ++i) {
      const size_t begin = column(played.stages[s][i].begin_ns),
                   end = std::min(columns, std::max(begin + 1, column(played.stages[s][i].end_ns)));
      for (size_t c = begin; c < end; ++c) {
        if (left_out > 0 && c >= ends && c < ends + left_out) {
          c = ends + left_out - 1;  // skips a part of what is left out
          continue;
        }
        cells[c < ends || left_out == 0 ? c : c - left_out] = c == begin ? label(schedule.stages[s][i]) : "-";
      }
    }
    std::string line = fmt::format("stage {:<3}", s);
    for (size_t c = 0; c < cells.size(); ++c)
      line += fmt::format("{} {:<{}}", left_out > 0 && c == ends ? " ..." : "", cells[c], width);
    while (line.back() == ' ') line.pop_back();
    table += line + "\n";
  }
  return table;
}

std::string schedule_csv(const PipelineSchedule& schedule) {
  const StagePlacement& placement = schedule.placement;
  bool goes_round = true;
  for (int part = 0; part < placement.parts(); ++part)
    goes_round &= placement.stage_of(part) == part % schedule.shape.stages;
  std::string csv = std::string(goes_round ? kHeader : kHeaderOfParts) + "\n";
  for (size_t s = 0; s < schedule.stages.size(); ++s)
    for (size_t i = 0; i < schedule.stages[s].size(); ++i) {
      const Action& action = schedule.stages[s][i];
      csv += fmt::format("{},{},{},{},{}\n", s, i, letter_of(action.pass),
                         goes_round ? action.chunk : placement.part(static_cast<int>(s), action.chunk),
                         action.micro_batch);
    }
  return csv;
}

PipelineSchedule parse_schedule(const std::string& csv, const ScheduleShape& shape, const std::string& source) {
  PipelineSchedule schedule{.shape = shape, .placement = StagePlacement::round(shape.stages, shape.virtual_stages)};
  bool of_parts = false;
  std::vector<int> stage_of(static_cast<size_t>(shape.stages * shape.virtual_stages), -1);  // by part
  std::vector<std::map<int, Action>> rows(static_cast<size_t>(shape.stages));
  const std::string remedy = "write the file again with plan --schedule-csv";
  std::istringstream lines(csv);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.pop_back();
    if (number == 1) of_parts = line == kHeaderOfParts;
    if (number == 1 && line != kHeader && !of_parts)
      throw ConfigError("[pipeline] {}: the first line is \"{}\", expected \"{}\".", source, shown(line), kHeader);
    if (number == 1 || line.empty()) continue;
    const std::optional<Row> row = row_of(line);
    if (!row)
      throw ConfigError("[pipeline] {}, line {}: \"{}\" is not {} with pass F, B or W.", source, number, shown(line),
                        of_parts ? kHeaderOfParts : kHeader);
    const auto [stage, position, place, micro_batch, pass] = *row;
    for (const auto& [what, is, count, key] :
         {std::tuple{"stage", stage, shape.stages, "parallel.pipeline"},
          {of_parts ? "part" : "chunk", place, shape.virtual_stages * (of_parts ? shape.stages : 1),
           "pipeline.virtual_stages"},
          {"micro-batch", micro_batch, shape.micro_batches, "train.global_batch_size"}})
      if (is < 0 || is >= count)
        throw ConfigError(
            "[pipeline] {}, line {}: {} {} does not exist: this run has {}, numbered from 0. Change {}, or "
            "{}.",
            source, number, what, is, count, key, remedy);
    if (of_parts)
      if (const int other = std::exchange(stage_of[static_cast<size_t>(place)], stage); other >= 0 && other != stage)
        throw ConfigError("[pipeline] {}, line {}: part {} is on stage {} and on stage {}. Give each part one stage.",
                          source, number, place, other, stage);
    const Action action{pass == 'F' ? Pass::forward : pass == 'B' ? Pass::backward : Pass::weight, place, micro_batch};
    schedule.splits_backward |= action.pass == Pass::weight;
    if (!rows[static_cast<size_t>(stage)].emplace(position, action).second)
      throw ConfigError("[pipeline] {}, line {}: stage {} has two actions at position {}.", source, number, stage,
                        position);
  }
  for (const auto& row : rows) {
    schedule.stages.emplace_back();
    for (const auto& [position, action] : row) schedule.stages.back().push_back(action);
  }
  if (of_parts) {
    if (const auto absent = std::find(stage_of.begin(), stage_of.end(), -1); absent != stage_of.end())
      throw ConfigError("[pipeline] {}: no stage runs part {} of {}. Add its passes, or {}.", source,
                        absent - stage_of.begin(), stage_of.size(), remedy);
    for (int stage = 0; stage < shape.stages; ++stage)
      for (Action& action : schedule.stages[static_cast<size_t>(stage)])
        action.chunk = static_cast<int>(std::count(stage_of.begin(), stage_of.begin() + action.chunk, stage));
  }
  try {
    if (of_parts) schedule.placement = StagePlacement(stage_of);
    require_valid(schedule);
  } catch (const ConfigError& error) {
    throw ConfigError(
        "{} The schedule comes from {}; this run needs {} micro-batches on {} stages x {} chunks. Correct it, "
        "or {}.",
        error.what(), source, shape.micro_batches, shape.stages, shape.virtual_stages, remedy);
  }
  for (size_t s = 0; s < rows.size(); ++s)
    if (const int last = std::ssize(rows[s]) - 1; rows[s].begin()->first != 0 || rows[s].rbegin()->first != last)
      throw ConfigError(
          "[pipeline] {}: the positions of stage {} go from {} to {}, but it has {} rows. Number them from 0 to {}, or "
          "{}.",
          source, s, rows[s].begin()->first, rows[s].rbegin()->first, last + 1, last, remedy);
  return schedule;
}

}  // namespace slipstream

// SPDX-License-Identifier: Apache-2.0
// Schedules as text: stage x time for people, CSV for other programs.

#include <algorithm>
#include <cctype>
#include <map>
#include <sstream>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "engine/plan/schedules/schedule.h"

namespace slipstream {
namespace {

constexpr const char* kHeader = "stage,position,pass,chunk,micro_batch";

char letter_of(Pass pass) { return pass == Pass::forward ? 'F' : pass == Pass::backward ? 'B' : 'W'; }

}  // namespace

std::string schedule_table(const PipelineSchedule& schedule, const Played& played, int64_t tick_ns) {
  const auto column = [&](int64_t ns) { return static_cast<size_t>((ns + tick_ns / 2) / tick_ns); };
  const auto label = [&](const Use& use) {
    return schedule.shape.virtual_stages > 1 ? fmt::format("{}{}.{}", letter_of(use.pass), use.micro_batch, use.chunk)
                                             : fmt::format("{}{}", letter_of(use.pass), use.micro_batch);
  };
  size_t width = 0;
  for (const auto& order : schedule.stages)
    for (const Use& use : order) width = std::max(width, label(use).size());
  std::string table;
  for (size_t s = 0; s < schedule.stages.size(); ++s) {
    std::vector<std::string> cells(column(played.makespan_ns), ".");
    for (size_t i = 0; i < played.stages[s].size(); ++i)
      for (size_t c = column(played.stages[s][i].begin_ns); c < std::max(column(played.stages[s][i].begin_ns) + 1, column(played.stages[s][i].end_ns)) && c < cells.size(); ++c)
        cells[c] = c == column(played.stages[s][i].begin_ns) ? label(schedule.stages[s][i]) : "-";
    std::string line = fmt::format("stage {:<3}", s);
    for (const std::string& cell : cells) line += fmt::format(" {:<{}}", cell, width);
    while (line.back() == ' ') line.pop_back();
    table += line + "\n";
  }
  return table;
}

std::string schedule_csv(const PipelineSchedule& schedule) {
  std::string csv = std::string(kHeader) + "\n";
  for (size_t s = 0; s < schedule.stages.size(); ++s)
    for (size_t i = 0; i < schedule.stages[s].size(); ++i) {
      const Use& use = schedule.stages[s][i];
      csv += fmt::format("{},{},{},{},{}\n", s, i, letter_of(use.pass), use.chunk, use.micro_batch);
    }
  return csv;
}

PipelineSchedule parse_schedule(const std::string& csv, const ScheduleShape& shape, const std::string& source) {
  PipelineSchedule schedule{.shape = shape};
  std::vector<std::map<int, Use>> rows(static_cast<size_t>(shape.stages));
  std::istringstream lines(csv);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.pop_back();
    if (number == 1 && line != kHeader) throw ConfigError("[pipeline] {}: the first line is \"{}\", expected \"{}\".", source, line, kHeader);
    if (number == 1 || line.empty()) continue;
    int stage = -1, position = -1, chunk = -1, micro_batch = -1, used = 0;
    char pass = '?';
    if (std::sscanf(line.c_str(), "%d,%d,%c,%d,%d%n", &stage, &position, &pass, &chunk, &micro_batch, &used) != 5 ||
        used != static_cast<int>(line.size()) || (pass != 'F' && pass != 'B' && pass != 'W'))
      throw ConfigError("[pipeline] {}, line {}: \"{}\" is not {} with pass F, B or W.", source, number, line, kHeader);
    if (stage < 0 || stage >= shape.stages)
      throw ConfigError("[pipeline] {}, line {}: stage {} is not among the {} of parallel.pipeline.", source, number, stage, shape.stages);
    const Use use{pass == 'F' ? Pass::forward : pass == 'B' ? Pass::backward : Pass::weight, chunk, micro_batch};
    schedule.splits_backward |= use.pass == Pass::weight;
    if (!rows[static_cast<size_t>(stage)].emplace(position, use).second)
      throw ConfigError("[pipeline] {}, line {}: stage {} has two uses at position {}.", source, number, stage, position);
  }
  for (const auto& row : rows) {
    schedule.stages.emplace_back();
    for (const auto& [position, use] : row) schedule.stages.back().push_back(use);
  }
  try {
    require_valid(schedule);
  } catch (const ConfigError& error) {
    throw ConfigError("{} It comes from {}.", error.what(), source);
  }
  return schedule;
}

}  // namespace slipstream

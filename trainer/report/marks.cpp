// SPDX-License-Identifier: Apache-2.0
// Collects the events of a run from all files that have some.

#include "trainer/report/marks.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "comm/flight.h"
#include "comm/verdict.h"
#include "engine/base/check.h"
#include "engine/base/plural.h"

namespace slipstream::report {
namespace {

namespace fs = std::filesystem;

std::string text_of(const Json& line, std::string_view key) {
  const Json* const value = line.find(key);
  return value && value->is_string() ? value->as_string() : "";
}
std::optional<int64_t> step_of(const Json& line) {
  const Json* const value = line.find("step");
  return value && value->is_int() ? std::optional(value->as_int()) : std::nullopt;
}

/// Adds checkpoints by the names of their folders, without reading their manifests.
void add_checkpoints(const std::string& dir, std::vector<Mark>& marks) {
  constexpr std::string_view prefix = "step-";
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    int64_t step = 0;
    const char* const end = name.data() + name.size();
    if (!name.starts_with(prefix) || marks.size() > 100 * kMostMarks) continue;
    if (std::from_chars(name.data() + prefix.size(), end, step).ptr != end) continue;  // step-00000120.tmp
    if (fs::exists(entry.path() / "manifest.json", error))
      marks.push_back({Mark::Kind::checkpoint, step, "", fmt::format("checkpoint of step {}", step)});
  }
}

void add_flight(const std::string& folder, std::vector<Mark>& marks, Missing& missing) {
  std::error_code error;
  if (!fs::is_directory(folder + "/flight", error)) return;
  try {
    const std::vector<comm::FlightRecord> records = comm::read_flight(folder + "/flight");
    int64_t step = 0;
    for (const comm::FlightRecord& record : records) step = std::max(step, record.step);
    marks.push_back({Mark::Kind::stall, step, "", comm::judge(records).sentence});
  } catch (const Error& damaged) {
    missing.push_back(fmt::format("flight/ cannot be read: {}", damaged.what()));
  }
}

void add_events(const std::string& path, const std::string& name, std::vector<Mark>& marks, Missing& missing) {
  each_object(path, name, missing, [&](const Json& line) {
    const std::string& event = line.at("event").as_string();
    const Json* const code = line.find("code");
    Mark mark{Mark::Kind::other, step_of(line), text_of(line, "time"), text_of(line, "why")};
    if (mark.text.empty()) mark.text = event;
    if (event == "relaunch") mark.kind = Mark::Kind::relaunch;
    if (event == "blame" || event == "give_up" || event == "drop" ||
        (event == "exit" && code && code->is_int() && code->as_int() != 0 && code->as_int() != 75))
      mark.kind = Mark::Kind::fault;
    if (marks.size() <= 100 * kMostMarks) marks.push_back(std::move(mark));
  });
}

void add_stragglers(const std::string& folder, std::vector<Mark>& marks, Missing& missing) {
  each_object(folder + "/stragglers.jsonl", "stragglers.jsonl", missing, [&](const Json& line) {
    Mark mark{Mark::Kind::straggler, step_of(line), text_of(line, "time"), ""};
    // The fields are those that trainer/runtime/loop/straggler_report.cpp writes. Unknown ones are shown as they are.
    const Json* const rank = line.find("rank");
    const Json* const late = line.find("late_ms");
    mark.text = line.dump();
    if (rank && rank->is_int() && late && late->is_number()) {
      const std::string item = text_of(line, "item");
      mark.text = fmt::format("rank {} is late by {:.1f} ms: {}{}", rank->as_int(), late->as_double(),
                              text_of(line, "cause"), item.empty() ? "" : ", " + item);
    }
    if (marks.size() <= 100 * kMostMarks) marks.push_back(std::move(mark));
  });
}

}  // namespace

const char* name_of(Mark::Kind kind) {
  constexpr const char* names[] = {"checkpoint", "skipped", "straggler", "stall", "fault", "relaunch", "event"};
  return names[static_cast<size_t>(kind)];
}

std::vector<Mark> read_marks(const std::string& folder, const std::string& checkpoint_dir, const MetricsTable& metrics,
                             Missing& missing) {
  std::vector<Mark> marks;
  add_checkpoints(checkpoint_dir, marks);
  for (int64_t step : metrics.skipped)
    marks.push_back({Mark::Kind::skipped, step, "", fmt::format("the update of step {} is skipped", step)});
  add_flight(folder, marks, missing);
  const std::string name = fs::path(folder).filename().string() + ".events.jsonl";
  add_events(folder + ".events.jsonl", name, marks, missing);
  add_stragglers(folder, marks, missing);
  std::stable_sort(marks.begin(), marks.end(), [](const Mark& a, const Mark& b) {
    return a.step.value_or(INT64_MAX) < b.step.value_or(INT64_MAX);
  });
  if (marks.size() > kMostMarks) {
    missing.push_back(fmt::format("{} are left out: a page shows {}.",
                                  counted(static_cast<int64_t>(marks.size() - kMostMarks), "event"), kMostMarks));
    marks.resize(kMostMarks);
  }
  return marks;
}

}  // namespace slipstream::report

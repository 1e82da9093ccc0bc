// SPDX-License-Identifier: Apache-2.0
// Reads sweep.json. Values that differ from what scripts/sweep.py writes are left out.

#include "trainer/report/sweep.h"

#include <algorithm>
#include <filesystem>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "trainer/report/page_data.h"

namespace slipstream::report {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLargestBytes = int64_t{64} << 20;
constexpr size_t kMostPoints = 500;
constexpr size_t kMostFigures = 64;
constexpr size_t kMostTimelines = 6;
constexpr size_t kMostSpansOfTimeline = 4000;

/// Returns the text of a member, or an empty text if it is none.
std::string text_of(const Json& object, std::string_view key, size_t most = 500) {
  const Json* const value = object.find(key);
  return value && value->is_string() ? value->as_string().substr(0, most) : "";
}

int64_t count_of(const Json& object, std::string_view key) {
  const Json* const value = object.find(key);
  return value && value->is_int() ? value->as_int() : 0;
}

/// Returns true for a name of a trial, so that no text of the file leads out of the folder of the sweep.
bool is_trial_name(const std::string& name) {
  return !name.empty() && name.size() < 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-';
  });
}

Json figures_of_point(const Json& point) {
  Json figures = Json::object();
  const Json* const given = point.find("figures");
  if (!given || !given->is_object()) return figures;
  for (const auto& [name, figure] : given->as_object()) {
    // Sweeps of versions before 0.2 have means.
    const char* const middle = figure.is_object() && figure.find("median") ? "median" : "mean";
    const Json* const value_of_point = figure.is_object() ? figure.find(middle) : nullptr;
    if (!value_of_point || !value_of_point->is_number() || figures.as_object().size() == kMostFigures) continue;
    Json row = Json::array();
    for (const char* part : {middle, "low", "high"}) {
      const Json* const value = figure.find(part);
      row.push_back(value && value->is_number() ? *value : Json());
    }
    figures[name] = std::move(row);
  }
  return figures;
}

Json point_of(const Json& given) {
  Json point = Json::object();
  point["ranks"] = count_of(given, "ranks");
  point["settings"] = Json::array();
  if (const Json* const settings = given.find("settings"); settings && settings->is_object())
    for (const auto& [key, value] : settings->as_object())
      if (value.is_string()) {
        Json row = Json::array();
        row.push_back(key);
        row.push_back(value.as_string().substr(0, 500));
        point["settings"].push_back(std::move(row));
      }
  point["runs"] = count_of(given, "runs");
  point["failed"] = count_of(given, "failed");
  point["why"] = text_of(given, "why");
  point["figures"] = figures_of_point(given);
  return point;
}

/// Returns the traced steps of the first finished run of a point, or null without such a run.
Json timeline_of_point(const std::string& folder, const Json& given) {
  const Json* const trials = given.find("trials");
  if (!trials || !trials->is_array() || trials->as_array().empty() || !trials->as_array()[0].is_string()) return {};
  const std::string& name = trials->as_array()[0].as_string();
  if (!is_trial_name(name)) return {};
  try {
    RunFolder run = read_run(folder + "/trials/" + name + "/run", kMostSpansOfTimeline);
    if (run.trace.ranks.empty()) return {};  // most sweeps trace nothing
    return timeline_data(run.trace, planned_of(run, run.missing), 1);
  } catch (const DataError&) {  // the run was removed or damaged in the meantime
    return {};
  }
}

}  // namespace

bool is_sweep(const std::string& folder) {
  std::error_code error;
  return fs::is_regular_file(folder + "/sweep.json", error);
}

Json sweep_data(const std::string& folder, Missing& missing) {
  const std::string path = folder + "/sweep.json";
  const Json record = Json::parse(files::read_file(path, files::Owner::data, kLargestBytes), path);
  const Json* const points = record.is_object() ? record.find("points") : nullptr;
  if (!points || !points->is_array() || count_of(record, "format") != 1)
    throw DataError(
        "[report] {} is damaged or of another version. scripts/sweep.py SWEEP.toml --collect writes it again.", path);
  Json data = Json::object();
  data["name"] = text_of(record, "name");
  data["path"] = folder;
  data["run"] = text_of(record, "run");
  data["repeats"] = count_of(record, "repeats");
  data["varied"] = Json::array();
  if (const Json* const varied = record.find("varied"); varied && varied->is_array())
    for (const Json& key : varied->as_array())
      if (key.is_string()) data["varied"].push_back(key);
  data["points"] = Json::array();
  data["timelines"] = Json::array();
  int64_t pending = 0;
  for (const Json& given : points->as_array()) {
    const size_t index = data["points"].as_array().size();
    if (!given.is_object() || index == kMostPoints) continue;
    Json point = point_of(given);
    pending +=
        std::max<int64_t>(0, count_of(record, "repeats") - point.at("runs").as_int() - point.at("failed").as_int());
    data["points"].push_back(std::move(point));
    if (data["timelines"].as_array().size() == kMostTimelines) continue;
    Json timeline = timeline_of_point(folder, given);
    if (timeline.is_null()) continue;
    timeline["point"] = static_cast<int64_t>(index);
    data["timelines"].push_back(std::move(timeline));
  }
  if (pending > 0)
    missing.push_back(
        fmt::format("{} of {} runs have not run yet. scripts/sweep.py continues the sweep.", pending,
                    count_of(record, "repeats") * static_cast<int64_t>(data.at("points").as_array().size())));
  if (points->as_array().size() > kMostPoints)
    missing.push_back(fmt::format("The page shows {} of {} points.", kMostPoints, points->as_array().size()));
  return data;
}

}  // namespace slipstream::report

// SPDX-License-Identifier: Apache-2.0
// Reads a run folder. Because of a damaged file, only its part of the page is missing.

#include "trainer/report/run_folder.h"

#include <algorithm>
#include <filesystem>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/plural.h"
#include "engine/config/fields.h"

namespace slipstream::report {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLargestRecordBytes = int64_t{64} << 20;
constexpr size_t kMostSettings = 1000;

/// Returns the object in a file. If there is none, returns an empty one and adds a sentence to `missing`.
Json read_object(const RunFolder& run, const std::string& name, const std::string& lacks, Missing& missing) {
  std::error_code error;
  if (!fs::exists(run.path + "/" + name, error)) {
    missing.push_back(fmt::format("{} is missing: {}.", name, lacks));
    return Json::object();
  }
  try {
    Json object = Json::parse(files::read_file(run.path + "/" + name, files::Owner::data, kLargestRecordBytes), name);
    object.as_object();
    return object;
  } catch (const Error& damaged) {
    missing.push_back(fmt::format("{} cannot be read, so {}: {}", name, lacks, damaged.what()));
    return Json::object();
  }
}

/// Reads the lines of a file that config_toml() wrote: "key = value". It does not use the parser, which refuses keys of
/// other versions.
std::vector<Setting> read_settings(const RunFolder& run, Missing& missing) {
  std::vector<Setting> settings;
  std::string table;
  const bool exists = each_line(run.path + "/config.resolved.toml", [&](std::string_view line, bool) {
    if (line.starts_with('[') && line.ends_with(']')) table = std::string(line.substr(1, line.size() - 2)) + ".";
    const size_t equals = line.find(" = ");
    if (equals == std::string_view::npos || line.starts_with('#') || settings.size() == kMostSettings) return;
    settings.push_back({table + std::string(line.substr(0, equals)), std::string(line.substr(equals + 3)), {}});
  });
  if (!exists) missing.push_back("config.resolved.toml is missing: there is no configuration.");
  if (exists && settings.empty()) missing.push_back("config.resolved.toml has no key: there is no configuration.");
  const RunConfig standard;
  for (Setting& setting : settings)
    for (const Field<RunConfig>& field : run_fields())
      if (field.key == setting.key) setting.standard = field_text(standard, setting.key);
  return settings;
}

/// Returns checkpoint.dir if it still exists under that name, else the folder inside the run folder.
std::string checkpoint_dir_of(const RunFolder& run) {
  const std::string inside = run.path + "/checkpoints";
  std::error_code error;
  if (fs::is_directory(inside, error)) return inside;
  for (const Setting& setting : run.settings)
    if (setting.key == "checkpoint.dir" && setting.value.size() > 2)
      return setting.value.substr(1, setting.value.size() - 2);
  return inside;
}

}  // namespace

RunFolder read_run(const std::string& path, size_t spans_max) {
  RunFolder run;
  run.path = path;
  while (run.path.size() > 1 && run.path.ends_with('/')) run.path.pop_back();
  run.name = fs::path(run.path).filename().string();
  if (run.name == "." || run.name == ".." || run.name.empty()) {
    std::error_code error;
    run.path = fs::canonical(run.path, error).string();
    run.name = fs::path(run.path).filename().string();
  }
  std::error_code error;
  if (!fs::is_directory(run.path, error))
    throw DataError("[report] {} is not a folder. Give the output.dir of a run.", files::shown(path));
  bool has_any = false;
  for (const char* name : {"run.json", "metrics.jsonl", "plan.json", "config.resolved.toml", "trace"})
    has_any = has_any || fs::exists(run.path + "/" + name, error);
  if (!has_any)
    throw DataError(
        "[report] {} is not a run folder: it has neither run.json nor metrics.jsonl. Give the output.dir of "
        "a run.",
        files::shown(path));
  run.record = read_object(run, "run.json", "version, host and layout are not known", run.missing);
  run.settings = read_settings(run, run.missing);
  run.metrics = read_metrics(run.path, run.missing);
  run.plan = read_object(run, "plan.json", "the page has no predictions, memory and links", run.missing);
  if (const Json* const format = run.plan.find("format");
      !run.plan.as_object().empty() && (!format || *format != Json(1))) {
    run.missing.push_back("plan.json is of another version: the page has no predictions, memory and links.");
    run.plan = Json::object();
    run.has_other_format = true;
  }
  run.trace = read_trace(run.path, spans_max, run.missing);
  run.marks = read_marks(run.path, checkpoint_dir_of(run), run.metrics, run.missing);
  return run;
}

std::string why_incomparable(const RunFolder& run) {
  if (run.has_other_format) {
    const Json* const version = run.record.find("version");
    return fmt::format("plan.json is of another version of the program{}. Use that version.",
                       version && version->is_string() ? ", " + files::printable(version->as_string(), 40) : "");
  }
  const Json* const ranks = run.record.find("ranks");
  const int64_t all = ranks && ranks->is_int() ? ranks->as_int() : 1;
  if (run.trace.files < std::min(all, kMostTraceFiles))
    return fmt::format(
        "trace/ has files of {} of {}. The run is not at its end, or stopped early. Wait for its end, or run it again "
        "with trace.steps.",
        run.trace.files, counted(all, "rank"));
  return run.trace.damage.empty() ? "" : run.trace.damage + " Copy the folder again, or run it again.";
}

}  // namespace slipstream::report

// SPDX-License-Identifier: Apache-2.0
#pragma once
// A run folder in memory: its record, configuration, metrics, plan, traces and events.

#include <optional>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "trainer/report/lines.h"
#include "trainer/report/marks.h"
#include "trainer/report/metrics_table.h"
#include "trainer/report/trace_spans.h"

namespace slipstream::report {

/// A key of config.resolved.toml.
struct Setting {
  std::string key;
  std::string value;
  std::optional<std::string> standard;  // the default; none: this version has no such key
};

struct RunFolder {
  std::string path;
  std::string name;              // the name of the folder
  Json record = Json::object();  // run.json
  Json plan = Json::object();    // plan.json; empty if it has another format
  bool has_other_format = false;
  std::vector<Setting> settings;
  MetricsTable metrics;
  Trace trace;
  std::vector<Mark> marks;
  Missing missing;
};

/// Blocks. Reads all that can be read. `missing` has a sentence for everything else.
/// Throws: DataError if the folder has no file of a run.
RunFolder read_run(const std::string& path, size_t spans_max);

/// Pure. Returns the reason why the traced steps of a run cannot be compared with its plan: another version of the
/// program wrote the plan, or the traces are incomplete. Returns an empty text if they can.
std::string why_incomparable(const RunFolder& run);

}  // namespace slipstream::report

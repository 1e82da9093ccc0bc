// SPDX-License-Identifier: Apache-2.0
// Reads metrics.jsonl line by line into columns.

#include "trainer/report/metrics_table.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "engine/base/check.h"
#include "engine/base/plural.h"

namespace slipstream::report {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kMostColumns = 64;  // the limit for fields, because a hostile file could have a new one in every line
constexpr size_t kMostCauses = 12;

/// Returns the column of a name, with a value for every row so far, or null beyond the largest number of columns.
Series* column_of(std::vector<Series>& columns, std::string_view name, size_t rows) {
  for (Series& series : columns)
    if (series.name == name) return &series;
  if (columns.size() == kMostColumns) return nullptr;
  columns.push_back({std::string(name), std::vector<double>(rows - 1, kNone)});
  return &columns.back();
}

void fill(std::vector<Series>& columns, size_t rows) {
  for (Series& series : columns) series.values.resize(rows, kNone);
}

/// Sorts the rows by their steps and keeps the last row of each step.
void sort_rows(MetricsTable& table) {
  if (std::is_sorted(table.steps.begin(), table.steps.end(), std::less_equal<>())) return;
  std::map<int64_t, size_t> last;
  for (size_t row = 0; row < table.steps.size(); ++row) last[table.steps[row]] = row;
  table.repeated = static_cast<int64_t>(table.steps.size() - last.size());
  const auto pick = [&](std::vector<Series>& columns) {
    for (Series& series : columns) {
      std::vector<double> values;
      for (const auto& [step, row] : last) values.push_back(series.values[row]);
      series.values = std::move(values);
    }
  };
  pick(table.columns);
  pick(table.causes);
  table.steps.clear();
  for (const auto& [step, row] : last) table.steps.push_back(step);
}

/// Adds up all causes except the largest ones.
void merge_small_causes(std::vector<Series>& causes) {
  const auto sum = [](const Series& series) {
    double total = 0;
    for (double value : series.values) total += std::isfinite(value) ? value : 0;
    return total;
  };
  std::stable_sort(causes.begin(), causes.end(), [&](const Series& a, const Series& b) { return sum(a) > sum(b); });
  if (causes.size() <= kMostCauses) return;
  Series rest{"other tasks", std::vector<double>(causes[0].values.size(), 0)};
  for (size_t c = kMostCauses - 1; c < causes.size(); ++c)
    for (size_t row = 0; row < rest.values.size(); ++row)
      if (std::isfinite(causes[c].values[row])) rest.values[row] += causes[c].values[row];
  causes.resize(kMostCauses - 1);
  causes.push_back(std::move(rest));
}

}  // namespace

const Series* MetricsTable::find(std::string_view name) const {
  for (const Series& series : columns)
    if (series.name == name) return &series;
  return nullptr;
}

std::string kind_of_task(std::string_view name) {
  name = name.substr(0, name.rfind('/') == std::string_view::npos ? name.size() : name.rfind('/'));
  std::string kind;
  size_t begin = 0;
  while (begin <= name.size()) {
    const size_t dot = std::min(name.find('.', begin), name.size());
    std::string_view word = name.substr(begin, dot - begin);
    while (!word.empty() && word.back() >= '0' && word.back() <= '9') word.remove_suffix(1);
    if (!word.empty() && word != "part") kind += (kind.empty() ? "" : ".") + std::string(word);
    begin = dot + 1;
  }
  return kind.empty() ? std::string(name) : kind;
}

MetricsTable read_metrics(const std::string& folder, Missing& missing) {
  MetricsTable table;
  const bool exists = each_object(folder + "/metrics.jsonl", "metrics.jsonl", missing, [&](const Json& line) {
    const int64_t step = line.at("step").as_int();
    table.steps.push_back(step);
    const size_t rows = table.steps.size();
    for (const auto& [key, value] : line.as_object()) {
      if (key == "step") continue;
      if (key == "exposed_by" && value.is_object()) {
        for (const auto& [task, ms] : value.as_object()) {
          Series* const cause = ms.is_number() ? column_of(table.causes, kind_of_task(task), rows) : nullptr;
          if (!cause) continue;
          cause->values.resize(rows, kNone);
          double& sum = cause->values.back();
          sum = (std::isfinite(sum) ? sum : 0) + ms.as_double();
        }
      } else if (key == "skipped" && value.is_bool() && value.as_bool()) {
        table.skipped.push_back(step);
      } else if (key == "params_hash" && value.is_string()) {
        table.hashes = {fmt::format("{}", step), value.as_string()};
      } else if (value.is_number() || value.is_null()) {
        if (Series* const column = column_of(table.columns, key, rows)) {
          column->values.resize(rows, kNone);
          column->values.back() = value.is_number() ? value.as_double() : kNone;
        }
      }
    }
    fill(table.columns, rows);
    fill(table.causes, rows);
  });
  if (!exists) missing.push_back("metrics.jsonl is missing: there are no curves.");
  if (exists && table.steps.empty()) missing.push_back("metrics.jsonl has no complete line yet: there are no curves.");
  sort_rows(table);
  if (table.repeated > 0)
    missing.push_back(
        fmt::format("metrics.jsonl has {} of steps that occur again. The report shows the last one of each.",
                    counted(table.repeated, "line")));
  merge_small_causes(table.causes);
  return table;
}

}  // namespace slipstream::report

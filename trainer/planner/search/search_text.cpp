// SPDX-License-Identifier: Apache-2.0
// Prints a search with the reason why each layout lost, and writes the run files of the first ones.

#include <algorithm>
#include <filesystem>
#include <map>

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/json.h"
#include "engine/base/plural.h"
#include "engine/base/print.h"
#include "engine/base/units.h"
#include "engine/config/fields.h"
#include "engine/config/load.h"
#include "engine/report/utilization.h"
#include "trainer/planner/forecast/software.h"
#include "trainer/planner/options/initial_model.h"
#include "trainer/planner/search/search.h"

namespace slipstream::planner {
namespace {

double mfu_of(const SearchResult& result, double step_ms) {
  const double peak = peak_flops_per_second(result.drawn.machine, result.drawn.config->train.dtype);
  return peak > 0 ? utilization(result.flops, step_ms, result.drawn.config.world(), peak) : 0;
}

/// Returns "data 8 tensor 4 pipeline 2 (1f1b), micro-batch 1, zero 1, recompute none, ...", without keys that have no
/// effect.
std::string layout_text(const std::vector<std::string>& sets) {
  std::map<std::string, std::string> value;
  std::string others;
  for (const std::string& set : sets) {
    const size_t equals = set.find('=');
    value[set.substr(0, equals)] = set.substr(equals + 1);
  }
  const auto take = [&](const char* key) {
    const auto found = value.find(key);
    const std::string text = found == value.end() ? "" : found->second;
    if (found != value.end()) value.erase(found);
    return text;
  };
  const auto part = [&](const char* key, const char* name, const char* plain) {
    const std::string text = take(key);
    return text.empty() || text == plain ? "" : fmt::format(" {} {}", name, text);
  };
  std::string text;
  for (const MeshAxis& row : kMeshAxes) {
    const std::string key = fmt::format("parallel.{}", name_of(row.axis));
    text += row.axis == kFreeAxis.axis ? fmt::format("{} {}", name_of(row.axis), take(key.c_str()))
                                       : part(key.c_str(), name_of(row.axis), "1");
  }
  text += part("parallel.expert", "expert", "1");
  if (take("overlap.paired_passes") == "true") text += " paired";
  take("parallel.sequence_parallel"), take("pipeline.layers");
  text += part("pipeline.schedule", "", "1f1b") + part("pipeline.virtual_stages", "x", "1");
  text += part("train.micro_batch_size", "micro-batch", "") + part("train.recompute", "recompute", "none") +
          part("train.recompute_layers", "in layers", "0");
  text += part("zero.stage", "zero", "0") + part("zero.shard_size", "in groups of", "0") +
          part("zero.prefetch_depth", "prefetch", "1") + part("overlap.bucket_size", "bucket", "") +
          part("overlap.tensor_chunks", "chunks", "1");
  for (const auto& [key, each] : value) text += fmt::format(" {}={}", key, each);
  return text;
}

/// Returns why a step is longer: "+12.0 ms: compute +2.0, exposed communication +10.5, bubble -0.5".
std::string reason_of(const StepTotals& first, const StepTotals& other) {
  const auto compute = [](const StepTotals& totals) { return totals.step_ms - totals.exposed_ms - totals.bubble_ms; };
  return fmt::format("{:+.1f} ms: compute {:+.1f}, exposed communication {:+.1f}, bubble {:+.1f}",
                     other.step_ms - first.step_ms, compute(other) - compute(first),
                     other.exposed_ms - first.exposed_ms, other.bubble_ms - first.bubble_ms);
}

struct Row {
  const SearchedLayout* layout = nullptr;
  StepTotals totals;
  std::string reason;  // empty: it is the first layout
};

std::vector<Row> rows_of(const SearchResult& result, size_t count) {
  std::vector<Row> rows;
  for (size_t i = 0; i < std::min(count, result.rehearsed); ++i) {
    Row row{.layout = &result.layouts[i]};
    row.totals = totals_of_config(result.drawn, result.configs[i]);
    if (i > 0) row.reason = reason_of(rows.front().totals, row.totals);
    rows.push_back(std::move(row));
  }
  return rows;
}

/// The layouts that were not rehearsed, by reason, with the best bound of each.
struct Loss {
  size_t count = 0;
  double least_ms = 0;
};
std::map<std::string, Loss> losses_of(const SearchResult& result) {
  std::map<std::string, Loss> losses;
  for (const SearchedLayout& layout : result.layouts) {
    if (layout.outcome != Outcome::slower && layout.outcome != Outcome::open) continue;
    Loss& loss = losses[layout.outcome == Outcome::open ? std::string("not rehearsed: no time was left")
                                                        : fmt::format("slower: {} alone", name_of(layout.bound.limit))];
    const double ms = static_cast<double>(layout.bound.step_ns) / 1e6;
    loss.least_ms = loss.count == 0 ? ms : std::min(loss.least_ms, ms);
    ++loss.count;
  }
  return losses;
}

void print_wires(const SearchResult& result) {
  constexpr size_t kRows = 4;
  if (result.wires.empty()) return;
  print_result("  With narrower types on the wire, which round gradients or parameters:\n");
  for (size_t i = 0; i < std::min(kRows, result.wires.size()); ++i) {
    const NarrowerWire& wire = result.wires[i];
    const double plain_ms = result.layouts[wire.layout].step_ms;
    print_result("{:>15.2f}{:>7.3f}{:>12}  #{} with --set {}: {:.1f} ms shorter\n", wire.step_ms,
                 mfu_of(result, wire.step_ms), "", wire.layout + 1, fmt::join(wire.sets, " --set "),
                 plain_ms - wire.step_ms);
  }
}

}  // namespace

void print_search(const SearchResult& result, size_t rows) {
  const Machine& machine = result.drawn.machine;
  print_result("search:  {} of {} on {}, {} per step: {} rehearsed in {:.1f} s\n",
               counted(std::ssize(result.layouts), "layout"), counted(result.drawn.config.world(), "rank"),
               machine.name, counted(result.global_batch, "sequence"), result.rehearsed, result.seconds);
  print_result("  too large for {}: {}; refused by a rule: {}\n", format_bytes(machine.memory_bytes),
               result.count(Outcome::too_large), result.count(Outcome::refused));
  for (const auto& [reason, loss] : losses_of(result))
    print_result("  {}: {}, at least {:.1f} ms\n", reason, loss.count, loss.least_ms);
  print_result("  {}\n", result.is_certain ? "No other of these layouts has a shorter rehearsed step."
                                           : "Layouts without a rehearsal may be faster: raise --seconds.");
  print_result("{:>3}{:>12}{:>7}{:>12}  layout\n", "#", "step ms", "MFU", "memory");
  size_t number = 0;
  for (const Row& row : rows_of(result, rows)) {
    print_result("{:>3}{:>12.2f}{:>7.3f}{:>12}  {}\n", ++number, row.layout->step_ms,
                 mfu_of(result, row.layout->step_ms), format_bytes(row.layout->memory_bytes),
                 layout_text(row.layout->sets));
    if (!row.reason.empty()) print_result("{:>36}{}\n", "", row.reason);
  }
  print_wires(result);
  print_result("try:     --set {}\n", fmt::join(result.layouts.front().sets, " --set "));
}

void print_search_json(const SearchResult& result, size_t rows) {
  Json json = Json::object();
  json["layouts"] = static_cast<int64_t>(result.layouts.size());
  json["ranks"] = result.drawn.config.world();
  json["machine"] = result.drawn.machine.name;
  json["global_batch_size"] = result.global_batch;
  json["seconds"] = result.seconds;
  json["certain"] = result.is_certain;
  for (const auto& [name, outcome] : {std::pair{"rehearsed", Outcome::rehearsed},
                                      {"too_large", Outcome::too_large},
                                      {"refused", Outcome::refused},
                                      {"slower", Outcome::slower},
                                      {"open", Outcome::open}})
    json["counts"][name] = static_cast<int64_t>(result.count(outcome));
  json["rows"] = Json::array();
  for (const Row& each : rows_of(result, rows)) {
    Json row = Json::object();
    row["sets"] = Json::array();
    for (const std::string& set : each.layout->sets) row["sets"].push_back(set);
    row["step_ms"] = each.layout->step_ms;
    row["bound_ms"] = static_cast<double>(each.layout->bound.step_ns) / 1e6;
    row["exposed_ms"] = each.totals.exposed_ms;
    row["bubble_ms"] = each.totals.bubble_ms;
    row["mfu"] = mfu_of(result, each.layout->step_ms);
    row["tokens_per_s_per_rank"] = 1e3 * static_cast<double>(result.global_batch) *
                                   static_cast<double>(result.drawn.config->train.sequence_length) /
                                   each.layout->step_ms / result.drawn.config.world();
    row["memory_bytes"] = each.layout->memory_bytes;
    row["reason"] = each.reason;
    json["rows"].push_back(row);
  }
  json["narrower_wires"] = Json::array();
  for (const NarrowerWire& wire : result.wires) {
    Json row = Json::object();
    row["layout"] = static_cast<int64_t>(wire.layout + 1);
    row["sets"] = Json::array();
    for (const std::string& set : wire.sets) row["sets"].push_back(set);
    row["step_ms"] = wire.step_ms;
    json["narrower_wires"].push_back(row);
  }
  print_result("{}\n", json.dump(2));
}

void write_winners(const PlanRequest& request, const SearchResult& result, const std::string& folder, size_t rows) {
  std::filesystem::create_directories(folder);
  const WrittenRun written = load_written(request.run_file, request.sets);
  for (size_t i = 0; i < std::min(rows, result.rehearsed); ++i) {
    const SearchedLayout& layout = result.layouts[i];
    files::write_file(
        fmt::format("{}/{}.toml", folder, i + 1),
        fmt::format("# slipstream plan --search: number {} of {} for {} on {}, rehearsed {:.2f} ms.\n{}", i + 1,
                    counted(std::ssize(result.layouts), "layout"), counted(result.drawn.config.world(), "rank"),
                    result.drawn.machine.name, layout.step_ms, config_toml(with_sets(written, layout.sets))));
  }
}

}  // namespace slipstream::planner

// SPDX-License-Identifier: Apache-2.0
// Puts the parts of a run into the JSON that trainer/report/page/*.js draws.

#include "trainer/report/page_data.h"

#include <algorithm>
#include <cmath>

#include "trainer/report/columns.h"
#include "trainer/report/figures.h"
#include "trainer/report/measured.h"
#include "trainer/report/planned.h"

namespace slipstream::report {
namespace {

constexpr size_t kMostTasks = 200;
constexpr size_t kMostPasses = 4000;  // for all stages of a schedule
constexpr size_t kMostUses = 300;     // rows of memory in use of a stage
constexpr size_t kMostStages = 64;
constexpr size_t kMostRanks = 1024;

Json row_of(std::initializer_list<Json> values) { return Json(Json::Array(values)); }

/// Returns lines of text about the run: [label, text].
Json facts_of(const RunFolder& run) {
  Json facts = Json::array();
  const auto add = [&](const char* label, std::string_view key) {
    const Json* const value = run.record.find(key);
    if (!value) return;
    if (value->is_string()) facts.push_back(row_of({label, *value}));
    if (value->is_int()) facts.push_back(row_of({label, fmt::format("{}", value->as_int())}));
  };
  add("Model", "model");
  add("Ranks", "ranks");
  if (const Json* const layout = run.record.find("layout"); layout && layout->is_object()) {
    std::string text;
    for (const auto& [axis, size] : layout->as_object())
      if (size.is_int()) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", axis, size.as_int());
    facts.push_back(row_of({"Layout", text}));
  }
  for (const auto& [label, key] :
       std::initializer_list<std::pair<const char*, std::string_view>>{{"Device", "device"},
                                                                       {"GPU", "gpu"},
                                                                       {"Instruction set", "isa"},
                                                                       {"Threads of a rank", "threads"},
                                                                       {"Host of rank 0", "host"},
                                                                       {"Machine", "machine"},
                                                                       {"Version", "version"},
                                                                       {"Build", "build"},
                                                                       {"Compiler", "compiler"},
                                                                       {"MPI", "mpi"},
                                                                       {"NCCL", "nccl"},
                                                                       {"Graph", "graph"},
                                                                       {"Plan", "plan_hash"},
                                                                       {"Resumed from", "resumed_from"}})
    add(label, key);
  if (run.metrics.hashes.size() == 2)
    facts.push_back(row_of({"Weights at step " + run.metrics.hashes[0], run.metrics.hashes[1]}));
  return facts;
}

Json notes_of(const RunFolder& run) {
  Json notes = Json::array();
  if (const Json* const given = run.record.find("notes"); given && given->is_array())
    for (const Json& note : given->as_array())
      if (note.is_string()) notes.push_back(note);
  return notes;
}

Json curves_of(const MetricsTable& metrics) {
  Json curves = Json::object();
  curves["starts"] = column_starts(metrics.steps);
  curves["count"] = static_cast<int64_t>(metrics.steps.size());
  curves["last"] = metrics.steps.back();
  curves["series"] = Json::object();
  for (const Series& series : metrics.columns) curves["series"][series.name] = columns_of(series.values);
  curves["causes"] = Json::array();
  for (const Series& series : metrics.causes) {
    // A step without this cause did not wait for any of its tasks.
    std::vector<double> values = series.values;
    for (double& value : values) value = std::isfinite(value) ? value : 0;
    Json cause = columns_of(values);
    cause["name"] = series.name;
    curves["causes"].push_back(std::move(cause));
  }
  return curves;
}

Json figures_json(const std::vector<Figure>& all) {
  Json figures = Json::array();
  for (const Figure& figure : all) {
    Json row = Json::object();
    row["key"] = figure.key;
    row["label"] = figure.label;
    row["unit"] = figure.unit;
    row["value"] = figure.value;
    row["better"] = name_of(figure.better);
    row["main"] = figure.is_main;
    if (figure.noise) row["noise"] = *figure.noise;
    figures.push_back(std::move(row));
  }
  return figures;
}

Json marks_of(const RunFolder& run) {
  Json marks = Json::array();
  for (const Mark& mark : run.marks) {
    Json row = Json::object();
    row["kind"] = name_of(mark.kind);
    if (mark.step) row["step"] = *mark.step;
    if (!mark.time.empty()) row["time"] = mark.time;
    row["text"] = mark.text.substr(0, 2000);
    marks.push_back(std::move(row));
  }
  return marks;
}

Json settings_of(const RunFolder& run) {
  Json settings = Json::array();
  for (const Setting& setting : run.settings)
    settings.push_back(
        row_of({setting.key, setting.value.substr(0, 2000), setting.standard ? Json(*setting.standard) : Json()}));
  return settings;
}

Json tasks_of(const std::vector<TaskTime>& tasks) {
  Json rows = Json::array();
  for (const TaskTime& task : tasks) {
    if (rows.as_array().size() == kMostTasks) break;
    rows.push_back(row_of({task.stage, task.name, task.op, task.channel, task.runs, rounded(task.predicted_ns),
                           rounded(task.measured_ns), rounded(task.sent_bytes)}));
  }
  return rows;
}

Json kernels_of(const std::vector<KernelTime>& kernels) {
  Json rows = Json::array();
  for (const KernelTime& kernel : kernels) {
    if (rows.as_array().size() == kMostTasks) break;
    rows.push_back(row_of({kernel.name, rounded(kernel.runs), rounded(kernel.measured_ns), rounded(kernel.flops),
                           rounded(kernel.bytes), rounded(kernel.bound_ns), kernel.is_compute_bound}));
  }
  return rows;
}

Json passes_of(const std::vector<Pass>& passes, size_t most) {
  Json rows = Json::array();
  for (size_t i = 0; i < std::min(passes.size(), most); ++i)
    rows.push_back(row_of({static_cast<int>(passes[i].kind), passes[i].micro_batch, passes[i].begin_ns, passes[i].ns}));
  return rows;
}

Json schedule_of(const std::vector<StageSchedule>& stages) {
  Json rows = Json::array();
  const size_t shown = std::min(stages.size(), kMostStages);
  for (size_t s = 0; s < shown; ++s) {
    Json row = Json::object();
    row["stage"] = stages[s].stage;
    row["predicted"] = passes_of(stages[s].predicted, kMostPasses / shown);
    row["measured"] = passes_of(stages[s].measured, kMostPasses / shown);
    rows.push_back(std::move(row));
  }
  return rows;
}

Json memory_of(const Planned& planned) {
  Json memory = Json::object();
  memory["owners"] = Json::array();
  for (const std::string& owner : planned.owners) memory["owners"].push_back(owner);
  memory["step_ns"] = planned.step_ns;
  memory["stages"] = Json::array();
  for (size_t s = 0; s < std::min(planned.stages.size(), kMostStages); ++s) {
    const PlannedStage& stage = planned.stages[s];
    Json row = Json::object();
    row["bytes"] = Json::object();
    for (const auto& [owner, bytes] : stage.memory_bytes) row["bytes"][owner] = bytes;
    // If several rows share a place, the row with the most bytes stays.
    const size_t rows = stage.memory_in_use.size(), most = std::max<size_t>(8, kMostUses / planned.stages.size());
    row["in_use"] = Json::array();
    for (size_t group = 0; group < std::min(rows, most); ++group) {
      const auto total = [](const std::vector<int64_t>& values) {
        double sum = 0;
        for (size_t i = 1; i < values.size(); ++i) sum += static_cast<double>(values[i]);
        return sum;
      };
      const auto first = stage.memory_in_use.begin() + static_cast<std::ptrdiff_t>(group * rows / std::min(rows, most));
      const auto end =
          stage.memory_in_use.begin() + static_cast<std::ptrdiff_t>((group + 1) * rows / std::min(rows, most));
      const auto largest =
          std::max_element(first, end, [&](const auto& a, const auto& b) { return total(a) < total(b); });
      Json values = Json::array();
      for (int64_t value : *largest) values.push_back(value);
      row["in_use"].push_back(std::move(values));
    }
    memory["stages"].push_back(std::move(row));
  }
  return memory;
}

Json mesh_of(const Planned& planned) {
  Json mesh = Json::object();
  mesh["ranks_per_node"] = planned.ranks_per_node;
  mesh["axes"] = Json::array();
  for (const std::string& axis : planned.axes) mesh["axes"].push_back(axis);
  mesh["coordinates"] = Json::array();
  for (size_t rank = 0; rank < std::min(planned.coordinates.size(), kMostRanks); ++rank) {
    Json row = Json::array();
    for (int64_t at : planned.coordinates[rank]) row.push_back(at);
    mesh["coordinates"].push_back(std::move(row));
  }
  mesh["ranks"] = static_cast<int64_t>(planned.coordinates.size());
  mesh["channels"] = Json::array();
  for (size_t s = 0; s < std::min(planned.stages.size(), kMostStages); ++s)
    for (const PlannedChannel& channel : planned.stages[s].channels)
      if (channel.axis != "self")
        mesh["channels"].push_back(
            row_of({static_cast<int64_t>(s), channel.name, channel.axis, channel.ranks, channel.between_nodes,
                    channel.bytes_per_second, channel.latency_ns, channel.tasks, channel.sent_bytes}));
  return mesh;
}

}  // namespace

Json timeline_data(const Trace& trace, const Planned& planned, size_t ranks_max) {
  const std::vector<std::vector<int64_t>> waits = waits_inside(planned, trace);
  int64_t origin_ns = INT64_MAX;
  for (const RankTrace& rank : trace.ranks)
    for (const TraceSpan& span : rank.spans) origin_ns = std::min(origin_ns, span.begin_ns);
  Json timeline = Json::object();
  timeline["traced_steps"] = trace.traced_steps;
  timeline["steps"] = Json::array();
  for (int64_t step : trace.steps) timeline["steps"].push_back(step);
  timeline["names"] = Json::array();
  for (const SpanName& name : trace.names)
    timeline["names"].push_back(
        row_of({name.name, static_cast<int>(name.kind), name.item, name.awaited, name.awaited_channel, name.op,
                name.dtype, name.flops, name.bytes, name.group_size}));
  timeline["ranks"] = Json::array();
  for (size_t r = 0; r < std::min(trace.ranks.size(), ranks_max); ++r) {
    const RankTrace& rank = trace.ranks[r];
    Json row = Json::object();
    row["rank"] = rank.rank;
    row["stage"] = planned.stage_of(rank.rank);
    row["channels"] = Json::array();
    for (const std::string& channel : rank.channels) row["channels"].push_back(channel);
    Json spans = Json::array();
    for (const TraceSpan& span : rank.spans)
      for (int64_t value :
           {int64_t{span.name}, int64_t{span.channel}, span.step, span.begin_ns - origin_ns, span.duration_ns})
        spans.push_back(value);
    row["spans"] = std::move(spans);
    row["waits"] = Json::array();
    for (size_t i = 0; i < waits[r].size(); ++i)
      if (waits[r][i] > 0)
        for (const int64_t value : {static_cast<int64_t>(i), waits[r][i]}) row["waits"].push_back(value);
    timeline["ranks"].push_back(std::move(row));
  }
  return timeline;
}

void add_comparison(const std::vector<const RunFolder*>& runs, Json& data) {
  const Comparison comparison = compare(runs);
  data["shared_steps"] = comparison.steps ? row_of({comparison.steps->first, comparison.steps->last}) : Json();
  data["compared"] = Json::array();
  for (const std::vector<Figure>& figures : comparison.figures) data["compared"].push_back(figures_json(figures));
}

Json page_data(RunFolder& run) {
  const Planned planned = planned_of(run, run.missing);
  // This is the run of plan --html, whose timeline is the prediction itself, with which nothing is compared.
  const Json* const rehearsed = run.record.find("rehearsed");
  const Trace none, &measured = rehearsed ? none : run.trace;
  Json data = Json::object();
  data["name"] = run.name;
  data["path"] = rehearsed ? *rehearsed : Json(run.path);
  data["facts"] = facts_of(run);
  data["notes"] = notes_of(run);
  data["figures"] = figures_json(figures_of(run));
  if (!run.metrics.steps.empty()) data["curves"] = curves_of(run.metrics);
  data["marks"] = marks_of(run);
  data["settings"] = settings_of(run);
  if (!run.trace.ranks.empty()) data["timeline"] = timeline_data(run.trace, planned);
  data["tasks"] = tasks_of(task_times(planned, measured));
  data["kernels"] = kernels_of(kernel_times(planned, measured));
  data["schedule"] = schedule_of(schedules(planned, measured));
  if (!planned.stages.empty()) {
    data["memory"] = memory_of(planned);
    data["mesh"] = mesh_of(planned);
    data["rates"] = row_of({planned.flops_per_second, planned.bytes_per_second});
    data["predicted_step_ns"] = planned.step_ns;
  }
  data["missing"] = Json::array();
  for (const std::string& sentence : run.missing) data["missing"].push_back(sentence);
  return data;
}

}  // namespace slipstream::report

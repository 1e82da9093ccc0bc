// SPDX-License-Identifier: Apache-2.0
// Divides the compute stream of plan and trace into works, waits by the awaited task, and the rest.

#include "trainer/report/reconcile.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "trainer/report/run_folder.h"

namespace slipstream::report {
namespace {

using Key = std::pair<std::string, bool>;  // the name, and true for a wait

struct Division {
  std::map<Key, double> named_ns;
  double step_ns = 0, unnamed_ns = 0, late_ns = 0;
};

/// Returns the awaited task of idle time that ends at `at_ns`. In virtual time it is the task that ends in the same
/// nanosecond, in this step or in the one before.
std::string awaited_at(const PlannedStage& stage, int64_t at_ns, int64_t step_ns) {
  for (const int64_t end_ns : {at_ns, at_ns + step_ns})
    for (const PlannedItem& item : stage.items)
      if (item.channel != 0 && item.begin_ns + item.ns == end_ns) return item.name;
  return "";
}

Division planned_division(const Planned& planned, const PlannedStage& stage) {
  std::vector<const PlannedItem*> items;
  for (const PlannedItem& item : stage.items)
    if (item.channel == 0) items.push_back(&item);
  std::stable_sort(items.begin(), items.end(),
                   [](const PlannedItem* a, const PlannedItem* b) { return a->begin_ns < b->begin_ns; });
  Division division{.step_ns = static_cast<double>(planned.step_ns)};
  if (items.empty()) return division;
  int64_t end_ns = items.back()->begin_ns + items.back()->ns - planned.step_ns;  // of the previous step
  for (const PlannedItem* item : items) {
    division.named_ns[{item->name, false}] += static_cast<double>(item->ns);
    if (const int64_t idle_ns = item->begin_ns - end_ns; idle_ns > 0) {
      const std::string awaited = awaited_at(stage, item->begin_ns, planned.step_ns);
      (awaited.empty() ? division.unnamed_ns : division.named_ns[{awaited, true}]) += static_cast<double>(idle_ns);
    }
    end_ns = std::max(end_ns, item->begin_ns + item->ns);
  }
  return division;
}

/// Adds the time from the step's first work to the next step's. Returns false if the trace has no next step.
bool add_step(const Trace& trace, const RankTrace& rank, int64_t step, Division& sum) {
  std::vector<TraceSpan> spans;
  int64_t begin_ns = INT64_MAX, end_ns = INT64_MAX;
  for (const TraceSpan& span : rank.spans) {
    if (span.channel != 0 || (span.step != step && span.step != step + 1)) continue;
    int64_t& first_ns = span.step == step ? begin_ns : end_ns;
    if (trace.names[span.name].kind != SpanName::Kind::wait) first_ns = std::min(first_ns, span.begin_ns);
    spans.push_back(span);
  }
  if (begin_ns == INT64_MAX || end_ns == INT64_MAX) return false;
  std::stable_sort(spans.begin(), spans.end(),
                   [](const TraceSpan& a, const TraceSpan& b) { return a.begin_ns < b.begin_ns; });
  int64_t at_ns = begin_ns;
  for (const TraceSpan& span : spans) {
    const int64_t from_ns = std::max(at_ns, span.begin_ns), to_ns = std::min(end_ns, span.begin_ns + span.duration_ns);
    if (to_ns <= from_ns) continue;
    const SpanName& name = trace.names[span.name];
    const bool waits = name.kind == SpanName::Kind::wait;
    sum.named_ns[{waits ? name.awaited : name.item, waits}] += static_cast<double>(to_ns - at_ns);
    sum.late_ns += static_cast<double>(from_ns - at_ns);
    at_ns = to_ns;
  }
  sum.unnamed_ns += static_cast<double>(end_ns - at_ns);
  sum.step_ns += static_cast<double>(end_ns - begin_ns);
  return true;
}

void add(Division& sum, const Division& part, double weight) {
  for (const auto& [key, ns] : part.named_ns) sum.named_ns[key] += weight * ns;
  sum.step_ns += weight * part.step_ns;
  sum.unnamed_ns += weight * part.unnamed_ns;
  sum.late_ns += weight * part.late_ns;
}

}  // namespace

double Reconciliation::named_share() const {
  double named_ns = 0;
  for (const Reconciled& task : tasks) named_ns += std::abs(task.more_ns());
  const double all_ns = named_ns + std::abs(unnamed_ns);
  return all_ns > 0 ? named_ns / all_ns : 1;
}

Reconciliation reconcile(const Planned& planned, const Trace& trace) {
  if (planned.step_ns == 0)
    throw DataError("plan.json has no times of tasks. Only plans of moderate size record them.");
  Division plan, run;
  Reconciliation result;
  std::set<int64_t> steps;
  double samples = 0;
  for (const RankTrace& rank : trace.ranks) {
    const int stage = planned.stage_of(rank.rank);
    if (stage < 0) continue;
    double of_rank = 0;
    for (const int64_t step : trace.steps)
      if (add_step(trace, rank, step, run)) {
        ++of_rank;
        steps.insert(step);
      }
    if (of_rank == 0) continue;
    ++result.ranks;
    samples += of_rank;
    add(plan, planned_division(planned, planned.stages[static_cast<size_t>(stage)]), of_rank);
  }
  if (samples == 0)
    throw DataError("the trace has no two steps in a row. Set trace.steps to at least two steps, such as [10, 12].");
  result.steps = std::ssize(steps);
  result.planned_ns = plan.step_ns / samples;
  result.measured_ns = run.step_ns / samples;
  result.late_ns = run.late_ns / samples;
  result.unnamed_ns = (run.unnamed_ns - plan.unnamed_ns) / samples;
  std::map<Key, Reconciled> tasks;
  for (const auto& [key, ns] : plan.named_ns) tasks[key].planned_ns = ns / samples;
  for (const auto& [key, ns] : run.named_ns) tasks[key].measured_ns = ns / samples;
  for (auto& [key, task] : tasks) {
    task.name = key.first;
    task.is_wait = key.second;
    result.tasks.push_back(task);
  }
  std::stable_sort(result.tasks.begin(), result.tasks.end(), [](const Reconciled& a, const Reconciled& b) {
    return std::abs(a.more_ns()) > std::abs(b.more_ns());
  });
  return result;
}

Reconciliation reconcile_run(const std::string& folder) {
  constexpr size_t kSpans = 4'000'000;
  const auto refuse = [&](const std::string& problem) {
    throw DataError("[plan] --against {}: {}", files::shown(folder), problem);
  };
  std::error_code error;
  for (const char* name : {"run.json", "plan.json", "trace"})
    if (!std::filesystem::exists(folder + "/" + name, error))
      refuse(fmt::format("{} is missing. Give the output.dir of a run{}.", name,
                         name == std::string_view("trace") ? " with trace.steps" : ""));
  const RunFolder run = read_run(folder, kSpans);
  if (run.has_other_format) refuse(why_incomparable(run));
  if (run.plan.as_object().empty() || !run.record.find("plan_hash"))
    refuse(run.missing.empty() ? "plan.json is empty" : run.missing.front());
  const Json* const hash = run.plan.find("plan_hash");
  if (!hash || *hash != run.record.at("plan_hash"))
    refuse("run.json and plan.json are of different plans. Give a folder that one run has written.");
  if (const std::string problem = why_incomparable(run); !problem.empty()) refuse(problem);
  Missing damaged;
  const Planned planned = planned_of(run, damaged);
  if (!damaged.empty()) refuse(damaged.front());
  try {
    return reconcile(planned, run.trace);
  } catch (const DataError& problem) {
    refuse(problem.what());
  }
  return {};
}

std::string table_of(const Reconciliation& result, size_t rows) {
  const auto ms = [](double ns) { return ns / 1e6; };
  std::string text = fmt::format(
      "step: {:.2f} ms measured, {:.2f} planned: {:+.2f} ({:+.1f} %); means of {} steps on {} ranks\n{:>10}{:>10}{:>10}"
      "  task\n",
      ms(result.measured_ns), ms(result.planned_ns), ms(result.gap_ns()), 100 * result.gap_ns() / result.planned_ns,
      result.steps, result.ranks, "planned", "measured", "more ms");
  double rest_planned_ns = 0, rest_measured_ns = 0;
  for (size_t i = 0; i < result.tasks.size(); ++i) {
    const Reconciled& task = result.tasks[i];
    if (i >= rows) {
      rest_planned_ns += task.planned_ns;
      rest_measured_ns += task.measured_ns;
      continue;
    }
    text += fmt::format("{:>10.3f}{:>10.3f}{:>+10.3f}  {}{}\n", ms(task.planned_ns), ms(task.measured_ns),
                        ms(task.more_ns()), task.is_wait ? "wait for " : "", task.name);
  }
  if (result.tasks.size() > rows)
    text += fmt::format("{:>10.3f}{:>10.3f}{:>+10.3f}  {} other tasks\n", ms(rest_planned_ns), ms(rest_measured_ns),
                        ms(rest_measured_ns - rest_planned_ns), result.tasks.size() - rows);
  return text +
         fmt::format(
             "{:>30.3f}  after the last task\nnamed tasks explain {:.1f} % of the differences; {:.2f} ms of their "
             "times passed before their works began\n",
             ms(result.unnamed_ns), 100 * result.named_share(), ms(result.late_ns));
}

Json json_of(const Reconciliation& result) {
  Json json = Json::object();
  json["planned_ms"] = result.planned_ns / 1e6;
  json["measured_ms"] = result.measured_ns / 1e6;
  json["after_last_task_ms"] = result.unnamed_ns / 1e6;
  json["late_ms"] = result.late_ns / 1e6;
  json["named_share"] = result.named_share();
  json["tasks"] = Json::array();
  for (const Reconciled& task : result.tasks) {
    Json row = Json::object();
    row["name"] = task.name;
    row["wait"] = task.is_wait;
    row["planned_ms"] = task.planned_ns / 1e6;
    row["measured_ms"] = task.measured_ns / 1e6;
    json["tasks"].push_back(std::move(row));
  }
  return json;
}

}  // namespace slipstream::report

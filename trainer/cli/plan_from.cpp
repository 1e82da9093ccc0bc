// SPDX-License-Identifier: Apache-2.0
// Carries the times of items from a trace to another plan. Pieces are matched by name, updates and norms by their
// bytes.

#include "trainer/cli/plan_modes.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/json.h"
#include "engine/base/print.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/report/reconcile.h"
#include "trainer/report/run_folder.h"
#include "trainer/runtime/run_folder/version.h"

namespace slipstream::cli {
namespace {

constexpr size_t kSpans = 4'000'000;

/// Returns the task of an item: "mlp.0/3" is run 3 of "mlp.0".
std::string task_of(const std::string& item) {
  const size_t slash = item.rfind('/');
  const bool numbered = slash != std::string::npos && slash + 1 < item.size() &&
                        item.find_first_not_of("0123456789", slash + 1) == std::string::npos;
  return numbered ? item.substr(0, slash) : item;
}

/// The mean times of a run's items on their streams.
class ItemTimes {
 public:
  ItemTimes(const report::Trace& trace, const report::Planned& planned) {
    std::map<std::string, const report::PlannedItem*> items;
    for (const report::PlannedStage& stage : planned.stages)
      for (const report::PlannedItem& item : stage.items) items[item.name] = &item;
    struct Sum {
      double ns = 0, runs = 0;
    };
    std::map<std::string, Sum> sums;
    for (const report::RankTrace& rank : trace.ranks) {
      std::map<std::pair<int64_t, std::string>, int64_t> runs;  // by step and item
      int64_t idle_since_ns = -1;                               // since when compute has had nothing to wait for
      for (const report::TraceSpan& span : rank.spans) {
        const report::SpanName& name = trace.names[span.name];
        const int64_t end_ns = span.begin_ns + span.duration_ns;
        int64_t begin_ns = span.begin_ns;
        if (span.channel == 0) {
          // As in a reconciliation, an item's time includes the time until its thread gets a core.
          if (idle_since_ns >= 0) begin_ns = std::min(begin_ns, idle_since_ns);
          idle_since_ns = std::max(idle_since_ns, end_ns);
        }
        if (name.kind == report::SpanName::Kind::kernel && !name.item.empty())
          runs[{span.step, name.item}] += std::max<int64_t>(0, end_ns - begin_ns);
      }
      for (const auto& [key, run_ns] : runs) {
        const auto ns = static_cast<double>(run_ns);
        for (const std::string& name : std::set{key.second, task_of(key.second)})
          sums[name].ns += ns, ++sums[name].runs;
        if (const auto found = items.find(key.second); found != items.end() && found->second->op != "compute") {
          auto& [total_ns, total_bytes] = by_op_[found->second->op];
          total_ns += ns;
          total_bytes += static_cast<double>(found->second->bytes);
        }
      }
    }
    for (const auto& [name, sum] : sums) by_name_[name] = static_cast<int64_t>(sum.ns / sum.runs);
  }

  /// Returns the time of every item; -1: the item is a task, or the run had no such spine item. Pure.
  std::vector<int64_t> of(const Plan& plan) const {
    std::vector<int64_t> times;
    for (const SpineItem& item : plan.spine) {
      int64_t ns = -1;
      for (const std::string& name : {item.name, task_of(item.name)})
        if (const auto found = by_name_.find(name); ns < 0 && found != by_name_.end()) ns = found->second;
      if (const auto found = by_op_.find(name_of(item.op)); item.op != Op::compute && found != by_op_.end()) {
        const auto& [total_ns, total_bytes] = found->second;
        if (total_bytes > 0) ns = static_cast<int64_t>(total_ns * static_cast<double>(item.cost.bytes) / total_bytes);
      }
      times.push_back(ns);
    }
    times.resize(plan.size(), -1);
    return times;
  }

 private:
  std::map<std::string, int64_t> by_name_;
  std::map<std::string, std::pair<double, double>> by_op_;  // total ns and bytes
};

struct Replayed {
  double step_ms = 0, modelled_ms = 0;
  int64_t unknown = 0;  // the spine items that the run did not have
  std::string unknown_name;
};

Replayed replay(const planner::PlanRequest& request, const ItemTimes& times) {
  const planner::Planned planned = planner::make_plan(request);
  planner::require_fits(planned);
  std::vector<std::vector<int64_t>> of_stages;
  Replayed replayed;
  for (const auto& stage : planned.finished.stages) {
    of_stages.push_back(times.of(stage->train()));
    for (size_t i = 0; i < stage->train().spine.size(); ++i)
      if (of_stages.back()[i] < 0) {
        ++replayed.unknown;
        replayed.unknown_name = stage->train().spine[i].name;
      }
  }
  const comm::RooflinePrice price = planner::price_of(*planned.config, planned.machine, planned.finished.job->mesh);
  replayed.step_ms =
      planner::rehearsed_step_ms(planned.finished.stages, of_stages, price, planned.finished.replay.taken);
  replayed.modelled_ms = static_cast<double>(planner::rehearse_step(planned).ranks.at(0).step_period_ns(1)) / 1e6;
  return replayed;
}

}  // namespace

int plan_from(const std::string& folder, planner::PlanRequest request, bool json) {
  const auto refuse = [&](const std::string& problem) {
    throw DataError("[plan] --from {}: {}", files::shown(folder), problem);
  };
  std::error_code error;
  for (const char* name : {"run.json", "plan.json", "config.resolved.toml", "trace"})
    if (!std::filesystem::exists(folder + "/" + name, error))
      refuse(fmt::format("{} is missing. Give the output.dir of a run{}.", name,
                         name == std::string_view("trace") ? " with trace.steps" : ""));
  const report::RunFolder run = report::read_run(folder, kSpans);
  const Json* const version = run.record.find("version");
  if (!version || !run.record.find("ranks"))
    refuse(run.missing.empty() ? "run.json has no version" : run.missing.front());
  if (version->as_string() != runtime::version())
    refuse(fmt::format("the run is of version {}, but this is {}. Use the same version.",
                       files::printable(version->as_string(), 40), runtime::version()));
  if (run.plan.as_object().empty() && !run.has_other_format)
    refuse(run.missing.empty() ? "plan.json is empty" : run.missing.front());
  if (const std::string problem = report::why_incomparable(run); !problem.empty()) refuse(problem);
  report::Missing damaged;
  const report::Planned planned = report::planned_of(run, damaged);
  if (!damaged.empty() || planned.stages.empty())
    refuse(damaged.empty() ? "plan.json is of another version" : damaged.front());
  if (run.trace.ranks.empty()) refuse("the trace has no steps. Run with trace.steps.");
  const report::Reconciliation measured = report::reconcile_run(folder);
  const ItemTimes times(run.trace, planned);
  const auto own_ranks = static_cast<int>(run.record.at("ranks").as_int());
  request.run_file = folder + "/config.resolved.toml";
  planner::PlanRequest unchanged = request;
  unchanged.sets.clear();
  unchanged.ranks = own_ranks;
  if (request.ranks == 0) request.ranks = own_ranks;
  // The resolved file names its data ranks.
  if (request.ranks != own_ranks) request.sets.insert(request.sets.begin(), "parallel.data=-1");
  const Replayed as_it_ran = replay(unchanged, times), changed = replay(request, times);
  if (json) {
    Json result = Json::object();
    result["measured_ms"] = measured.measured_ns / 1e6;
    result["replayed_ms"] = as_it_ran.step_ms;
    result["step_ms"] = changed.step_ms;
    result["ranks"] = request.ranks;
    result["unknown_items"] = changed.unknown;
    print_result("{}\n", result.dump(2));
    return 0;
  }
  print_result("as it ran:  {:.2f} ms measured, {:.2f} ms replayed ({:+.1f} %)\n", measured.measured_ns / 1e6,
               as_it_ran.step_ms, 100 * (as_it_ran.step_ms * 1e6 / measured.measured_ns - 1));
  print_result("as asked:   {:.2f} ms on {} ranks, {:.2f} of the measured step's speed\n", changed.step_ms,
               request.ranks, measured.measured_ns / 1e6 / changed.step_ms);
  if (changed.unknown > 0)
    print_result("note: {} items, such as {}, have modelled times, because the run did not have them\n",
                 changed.unknown, changed.unknown_name);
  return 0;
}

}  // namespace slipstream::cli

// SPDX-License-Identifier: Apache-2.0
// Passes the items of a rehearsal to the writer of traces, and the totals of its step to the page.

#include "trainer/cli/plan_modes.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <optional>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/json.h"
#include "engine/config/fields.h"
#include "engine/report/trace.h"
#include "trainer/planner/forecast/forecast.h"
#include "trainer/planner/forecast/plan_facts.h"
#include "trainer/planner/forecast/plan_record.h"
#include "trainer/report/page.h"
#include "trainer/runtime/run_folder/version.h"

namespace slipstream::cli {
namespace {

namespace fs = std::filesystem;

/// Returns the last to end of the items that `id` waits for before it starts, or none if it waits for no item.
std::optional<uint64_t> awaited_by(const comm::RankRuns& given, const comm::RankTimes& times, size_t run, ItemId id) {
  std::optional<uint64_t> awaited;
  int64_t latest_ns = -1;
  const auto look_at = [&](size_t of_run, ItemId from) {
    const int64_t end_ns = times.runs[of_run][from].end_ns;
    if (end_ns <= latest_ns) return;
    latest_ns = end_ns;
    awaited = uint64_t{(*given.runs[of_run])[from].channel} << 32 | from;
  };
  for (const Point& point : (*given.runs[run])[id].after) look_at(run, point.item);
  if (run < given.seams.size())
    for (const auto& wait : given.seams[run])
      if (wait.to == id) look_at(wait.run, wait.from);
  return awaited;
}

void write_trace_of(const Job& job, const comm::RankRuns& given, const comm::RankTimes& times,
                    const std::string& path) {
  TraceWriter writer(job, times.rank, 1, std::ssize(times.runs), path);
  std::deque<Work> works;
  std::vector<std::vector<Span>> spans(job.channels.size());
  int64_t computed_until_ns = -1;
  for (size_t run = 0; run < times.runs.size(); ++run) {
    const Plan& plan = *given.runs[run];
    for (const ItemId id : plan.order) {
      const Item& item = plan[id];
      const comm::Span& at = times.runs[run][id];
      const auto step = static_cast<uint32_t>(run + 1);
      if (item.channel == kComputeChannel) {
        const std::optional<uint64_t> awaited = awaited_by(given, times, run, id);
        if (computed_until_ns >= 0 && at.start_ns > computed_until_ns && awaited)
          spans[item.channel].push_back({.kind = Span::Kind::wait,
                                         .awaited = *awaited,
                                         .item = id,
                                         .step = step,
                                         .begin_ns = computed_until_ns,
                                         .end_ns = at.start_ns});
        computed_until_ns = std::max(computed_until_ns, at.end_ns);
      }
      works.push_back({.name = item.name, .cost = item.cost});
      spans[item.channel].push_back(
          {.work = &works.back(), .item = id, .step = step, .begin_ns = at.start_ns, .end_ns = at.end_ns});
    }
  }
  for (ChannelId c = 0; c < spans.size(); ++c) writer.add(c, spans[c]);
  writer.finish();
}

/// A folder that the destructor removes.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_((fs::temp_directory_path() / "slipstream-plan-XXXXXX").string()) {
    if (!::mkdtemp(path_.data()))
      throw ResourceError("[plan] {} cannot be made. Set TMPDIR to a folder that can be written.", path_);
  }
  ~TemporaryFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string command_of(const planner::Planned& planned) {
  std::string text = fmt::format("slipstream plan {} --ranks {}", planned.request.run_file, planned.config.world());
  if (!planned.request.machine.empty()) text += " --machine " + planned.request.machine;
  for (const std::string& set : planned.request.sets) text += " --set " + set;
  return text;
}

std::string record_of(const planner::Planned& planned) {
  const Job& job = *planned.finished.job;
  Json run = Json::object();
  run["rehearsed"] = command_of(planned);
  run["version"] = runtime::version();
  run["ranks"] = job.mesh.world();
  run["layout"] = planner::layout_json(job.mesh.sizes());
  run["device"] = planned.machine.name + " (rehearsed, not measured)";
  run["machine"] = planned.machine.name;
  run["model"] = job.model.description;
  run["parameters"] = job.parameter_elems;
  run["memory_bytes"] = planner::most_bytes(planned);
  if (planned.steady.planned == 0) run["plan_hash"] = fmt::format("{:016x}", planned.finished.proof.order_hash);
  run["notes"] = Json::array();
  run["notes"].push_back(
      "All times are virtual. The timeline shows the first rank of every pipeline stage; the others of its stage have "
      "the same times.");
  if (planned.steady.planned > 0)
    run["notes"].push_back(
        fmt::format("The timeline has {} of {} micro-batches, because every further {} add the same.",
                    planned.steady.planned, planned.micro_batches, planned.steady.round));
  for (const std::string& remark : planner::notes_of(planned)) run["notes"].push_back(remark);
  return run.dump(2) + "\n";
}

/// Returns a line for each rehearsed step. All lines have the times of a mean step.
std::string metrics_of(const planner::Planned& planned, const comm::Rehearsal& rehearsal) {
  const planner::StepTotals totals = planner::totals_of(planned, rehearsal);
  const planner::RunForecast run = planner::run_forecast(planned, totals.step_ms);
  Json line = Json::object();
  line["step"] = 0;
  line["step_ms"] = totals.step_ms;
  line["tokens_per_s"] = run.tokens_of_step * 1e3 / totals.step_ms;
  line["comm_ms"] = totals.communication_ms;
  line["exposed_ms"] = totals.exposed_ms;
  line["bubble_ms"] = totals.bubble_ms;
  if (totals.communication_ms > 0) line["hidden"] = std::max(0.0, 1 - totals.exposed_ms / totals.communication_ms);
  if (run.mfu > 0) line["mfu"] = run.mfu;
  std::string lines;
  for (size_t step = 1; step <= rehearsal.ranks.front().runs.size(); ++step) {
    line["step"] = static_cast<int64_t>(step);
    lines += line.dump() + "\n";
  }
  return lines;
}

}  // namespace

void write_rehearsed_trace(const planner::Planned& planned, const comm::Rehearsal& rehearsal,
                           const std::string& folder) {
  std::error_code error;
  for (const char* name : {"run.json", "metrics.jsonl"})
    if (fs::exists(folder + "/" + name, error))
      throw ConfigError("[plan] --trace {}: the folder holds a run. Give another folder.", files::shown(folder));
  fs::create_directories(folder + "/trace", error);
  if (error)
    throw ResourceError("[plan] --trace {} cannot be written: {}. Give another folder.", files::shown(folder),
                        error.message());
  const auto& stages = planned.finished.stages;
  const std::vector<comm::RankRuns> runs = planner::runs_of(stages, rehearsal.ranks.front().runs.size());
  for (size_t s = 0; s < stages.size(); ++s)
    write_trace_of(*stages[s], runs[s], rehearsal.ranks[s],
                   fmt::format("{}/trace/rank{:04}.json", folder, rehearsal.ranks[s].rank));
}

void write_rehearsed_page(const planner::Planned& planned, const comm::Rehearsal& rehearsal, const std::string& path) {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path() + "/" + fs::path(planned.request.run_file).stem().string();
  write_rehearsed_trace(planned, rehearsal, folder);
  files::write_file(folder + "/run.json", record_of(planned));
  files::write_file(folder + "/config.resolved.toml", config_toml(*planned.config));
  files::write_file(folder + "/metrics.jsonl", metrics_of(planned, rehearsal));
  files::write_file(folder + "/plan.json", planner::plan_record(*planned.config, planned.machine, planned.finished));
  files::write_file(path, report::make_page({folder}).html);
}

}  // namespace slipstream::cli

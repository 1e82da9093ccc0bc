// SPDX-License-Identifier: Apache-2.0
// Runs slipstream plan: prints the plan and its rehearsed times without running it.

#include <malloc.h>

#include <memory>
#include <sstream>
#include <string>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/json.h"
#include "engine/base/print.h"
#include "trainer/cli/command_line.h"
#include "trainer/cli/plan_flags.h"
#include "trainer/cli/plan_modes.h"
#include "trainer/planner/forecast/forecast.h"
#include "trainer/planner/forecast/planned.h"
#include "trainer/planner/search/need.h"
#include "trainer/planner/search/search.h"
#include "trainer/report/reconcile.h"

namespace slipstream::cli {
namespace {

struct PlanOptions : PlanFlags {
  bool search = false;
  double seconds = 60;  // for the search
  int64_t rows = 10;    // for its table
  std::vector<std::string> over;
  std::string need, vary;
  std::string batch;         // the path of a list of plans; empty: one plan
  std::string schedule_csv;  // the output path of the pipeline's schedule; empty: none
  std::string html, trace;   // the path of the page and the folder of the timeline of the rehearsed steps; empty: none
  std::string against;       // the folder of a run to compare with its plan; empty: none
  std::string from;          // the folder of a run whose computing times are replayed; empty: none
  std::vector<std::string> imported;  // the format and the path of another program's configuration; empty: none
  std::string write;                  // the folder for the winners of a search, or the path of the imported run file
  bool ranks_given = false;
};

/// Compares a finished run with its plan.
int against(const PlanOptions& options) {
  constexpr size_t kRows = 20;
  const report::Reconciliation result = report::reconcile_run(options.against);
  if (options.json)
    print_result("{}\n", report::json_of(result).dump(2));
  else
    print_result("{}", report::table_of(result, kRows));
  return 0;
}

/// Forecasts one line of a batch: the arguments of one plan, separated by spaces. Prints one line of JSON. For a
/// refused row, it has the error instead of times.
void forecast_line(const std::string& line, const planner::PlanRequest& defaults) {
  planner::PlanRequest request = defaults;
  request.sets.clear();
  CLI::App parser("one line of --batch");
  add_run_source(&parser, request);
  parser.add_option("--ranks", request.ranks)->check(CLI::Range(1, 1 << 24));
  parser.add_option("--machine", request.machine);
  parser.add_option("--as", request.as);
  Json row = Json::object();
  try {
    parser.parse(line);
    const planner::Forecast made = planner::forecast(request);
    row["step_ms"] = made.step_ms;
    row["step_ms_low"] = made.low_ms;
    row["step_ms_high"] = made.high_ms;
    row["exposed_ms"] = made.exposed_ms;
    row["bubble_ms"] = made.bubble_ms;
    row["tokens_per_s_per_rank"] = static_cast<double>(made.tokens) / made.step_ms * 1e3 / request.ranks;
    row["micro_batches"] = made.micro_batches;
    row["rehearsed_micro_batches"] = made.rehearsed;
    row["memory_bytes"] = made.memory_bytes;
    if (made.software_bytes > 0) row["software_memory_bytes"] = made.software_bytes;
  } catch (const CLI::Error& error) {
    row["error"] = std::string(error.what());
  } catch (const Error& error) {
    row["error"] = std::string(error.what());
  }
  print_result("{}\n", row.dump());
}

int batch(const PlanOptions& options) {
  constexpr int64_t kLimitBytes = 64 << 20;
  std::istringstream lines(files::read_file(options.batch, files::Owner::data, kLimitBytes));
  for (std::string line; std::getline(lines, line);)
    if (!line.empty()) forecast_line(line, options);
  return 0;
}

int search(const PlanOptions& options) {
  planner::SearchOptions asked{.seconds = options.seconds};
  for (const std::string& text : options.over) asked.keys.push_back(planner::parse_searched_key(text));
  const planner::SearchResult result = planner::search(options, asked);
  const auto rows = static_cast<size_t>(options.rows);
  options.json ? planner::print_search_json(result, rows) : planner::print_search(result, rows);
  if (!options.write.empty()) planner::write_winners(options, result, options.write, rows);
  return 0;
}

/// Keeps freed pages in the process, because plans of many stages free and allocate the same large arrays.
void keep_pages() {
  constexpr int kMost = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kMost);
  mallopt(M_TRIM_THRESHOLD, kMost);
}

int plan(const PlanOptions& options) {
  keep_pages();
  if (!options.against.empty()) return against(options);
  if (!options.from.empty()) {
    planner::PlanRequest request = options;
    if (!options.ranks_given) request.ranks = 0;
    return plan_from(options.from, request, options.json);
  }
  if (!options.imported.empty()) {
    planner::PlanRequest request = options;
    if (!options.ranks_given) request.ranks = 0;
    return plan_import({options.imported[0], options.imported[1], options.write, options.json}, request);
  }
  if (!options.batch.empty()) return batch(options);
  if (options.search) return search(options);
  if (options.need.empty() != options.vary.empty())
    throw ConfigError("[plan] --need and --vary belong together, for example --need mfu=0.5 --vary bandwidth.");
  if (!options.need.empty()) {
    const planner::Needed needed =
        planner::find_needed(options, planner::parse_need(options.need), planner::parse_varied(options.vary));
    options.json ? planner::print_needed_json(needed) : planner::print_needed(needed);
    return 0;
  }
  const planner::Planned planned = planner::make_plan(options);
  planner::require_fits(planned);  // a step that cannot run has no time
  const comm::Rehearsal rehearsal = planner::rehearse_step(planned);
  if (!options.schedule_csv.empty())
    files::write_file(options.schedule_csv, schedule_csv(planned.finished.job->schedule));
  if (!options.html.empty() || !options.trace.empty()) {
    if (!rehearsal.finished) throw PlanError("[plan] the rehearsal ends in a deadlock: {}", rehearsal.deadlock);
    if (!options.trace.empty()) write_rehearsed_trace(planned, rehearsal, options.trace);
    if (!options.html.empty()) write_rehearsed_page(planned, rehearsal, options.html);
  }
  options.json ? planner::print_plan_json(planned, rehearsal) : planner::print_plan(planned, rehearsal);
  if (!options.json && !options.trace.empty())
    print_result("timeline: {}/trace/rank*.json, for https://ui.perfetto.dev\n", options.trace);
  if (!options.json && !options.html.empty()) print_result("page:    {}; open it in a browser\n", options.html);
  planner::require_holds(planned.finished.proof);
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Run& chosen) {
  const auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand("plan", "print layout, memory, tasks and the rehearsed step");
  add_plan_flags(command, *options);
  command->get_option("run")->required(false);  // --batch names several run files
  command->add_flag("--search", options->search,
                    "find the layout with the shortest rehearsed step: ranks of every axis, ZeRO, micro-batch, "
                    "recomputation, schedule, buckets");
  command->add_option("--over", options->over,
                      "KEY=VALUE,VALUE: values of a key that --search compares. Types on the wire change the training, "
                      "so only --over adds them: comm.grad_dtype=float32,bfloat16");
  command->add_option("--seconds", options->seconds, "time limit of --search; 0: none")->check(CLI::NonNegativeNumber);
  command->add_option("--rows", options->rows, "layouts that --search prints and writes")
      ->check(CLI::Range(1, static_cast<int>(planner::kShownLayouts)));
  command->add_option("--need", options->need, "goal: mfu=0.5, step_ms=900 or tokens_per_s=1e6, with --vary");
  command->add_option("--vary", options->vary,
                      "bandwidth, memory, micro_batch or ranks: find the smallest value that meets --need");
  command->add_flag("--whole", options->whole, "plan all micro-batches of a long step, which may take minutes");
  command->add_option("--batch", options->batch,
                      "forecast the step of every line of this file, each with the arguments of one plan; prints one "
                      "line of JSON for each");
  command->add_option("--schedule-csv", options->schedule_csv,
                      "write the pipeline's schedule to this file, in the format of pipeline.schedule_file");
  command->add_option("--html", options->html,
                      "write the page of the rehearsed steps to this file: timeline, schedule, memory and links");
  command->add_option("--trace", options->trace,
                      "write the rehearsed timeline into this folder, as trace/rank*.json for Perfetto");
  command->add_option("--against", options->against,
                      "compare the traced steps of this run folder with its plan, task by task, worst first");
  command->add_option("--from", options->from,
                      "replay the computing times of this run folder with other --set and --ranks");
  command
      ->add_option("--import", options->imported,
                   "forecast a configuration of another program: megatron, torchtitan or nemo, and its path")
      ->expected(2)
      ->type_name("FORMAT PATH");
  command->add_option("--write", options->write,
                      "with --search: folder for the best run files; with --import: path of the run file");
  command->callback([&chosen, options, command] {
    options->ranks_given = command->count("--ranks") > 0;
    if (options->run_file.empty() && options->batch.empty() && options->against.empty() && options->from.empty() &&
        options->imported.empty())
      throw CLI::RequiredError("run");
    chosen = [options] { return alone("plan", [&] { return plan(*options); }); };
  });
}

}  // namespace slipstream::cli

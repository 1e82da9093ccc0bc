// SPDX-License-Identifier: Apache-2.0
// Runs slipstream plan: prints the plan and its rehearsed times without running it.

#include <memory>

#include "cli/command_line.h"
#include "cli/plan_flags.h"
#include "engine/base/check.h"
#include "engine/base/files.h"
#include "planner/planned.h"

namespace slipstream::cli {
namespace {

struct PlanOptions : PlanFlags {
  bool search = false;
  std::string schedule_csv;  // output path of the pipeline's schedule; empty: none
};

int plan(const PlanOptions& options) {
  if (options.search)
    throw ConfigError("[plan] --search is not in this version. Compare layouts with --set parallel.data=N.");
  const planner::Planned planned = planner::make_plan(options);
  const comm::Rehearsal rehearsal = planner::rehearse_step(planned);
  if (!options.schedule_csv.empty())
    files::write_file(options.schedule_csv, schedule_csv(planned.finished.job->schedule));
  options.json ? planner::print_plan_json(planned, rehearsal) : planner::print_plan(planned, rehearsal);
  planner::require_holds(planned.finished.proof);
  planner::require_fits(planned);
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Run& chosen) {
  const auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand("plan", "print layout, memory, tasks and the rehearsed step");
  add_plan_flags(command, *options);
  command->add_flag("--search", options->search, "search for a faster layout (not in this version)")->group("");
  command->add_option("--schedule-csv", options->schedule_csv,
                      "write the pipeline's schedule to this file, in the format of pipeline.schedule_file");
  command->callback(
      [&chosen, options] { chosen = [options] { return alone("plan", [&] { return plan(*options); }); }; });
}

}  // namespace slipstream::cli

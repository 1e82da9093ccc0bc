// SPDX-License-Identifier: Apache-2.0
// Runs slipstream check: prints the proof of a plan and returns its result as exit code.

#include <memory>

#include "cli/command_line.h"
#include "cli/plan_flags.h"
#include "engine/base/check.h"
#include "planner/planned.h"

namespace slipstream::cli {
namespace {

int check(const PlanFlags& options) {
  planner::PlanRequest request = options;
  request.whole = true;
  const planner::Planned planned = planner::make_plan(request);
  options.json ? planner::print_proof_json(planned) : planner::print_proof(planned);
  if (!planned.finished.proof.holds())
    throw PlanError(
        "[check] the plan failed its proof, for the reasons printed above. Please report it with the run file.");
  planner::require_fits(planned);
  return 0;
}

}  // namespace

void add_check(CLI::App& app, Run& chosen) {
  const auto options = std::make_shared<PlanFlags>();
  CLI::App* command = app.add_subcommand("check", "prove the plan: no deadlock, no hazard, fits in memory");
  add_plan_flags(command, *options);
  command->callback(
      [&chosen, options] { chosen = [options] { return alone("check", [&] { return check(*options); }); }; });
}

}  // namespace slipstream::cli

// SPDX-License-Identifier: Apache-2.0
// Runs slipstream check: prints the proof of a plan and returns its result as the exit code.

#include <memory>
#include <string>
#include <vector>

#include "engine/base/check.h"
#include "trainer/cli/command_line.h"
#include "trainer/cli/plan_flags.h"
#include "trainer/planner/forecast/planned.h"
#include "trainer/planner/forecast/questions.h"

namespace slipstream::cli {
namespace {

struct CheckFlags : PlanFlags {
  std::vector<std::string> waits;  // the later item, the earlier item
  std::string freed;
};

int check(const CheckFlags& options) {
  planner::PlanRequest request = options;
  request.whole = true;
  const planner::Planned planned = planner::make_plan(request);
  if (!options.waits.empty()) {
    const planner::NamedItem later = planner::find_item(planned, options.waits[0]);
    planner::print_answer(planner::ask_wait(planned, later, planner::find_item(planned, options.waits[1])),
                          options.json);
    return 0;
  }
  if (!options.freed.empty()) {
    planner::print_answer(planner::ask_freed(planned, planner::find_item(planned, options.freed)), options.json);
    return 0;
  }
  options.json ? planner::print_proof_json(planned) : planner::print_proof(planned);
  if (!planned.finished.proof.holds())
    throw PlanError(
        "[check] the plan failed its proof, for the reasons printed above. Please report it with the run file.");
  planner::require_fits(planned);
  return 0;
}

}  // namespace

void add_check(CLI::App& app, Run& chosen) {
  const auto options = std::make_shared<CheckFlags>();
  CLI::App* command =
      app.add_subcommand("check", "prove the plan: no deadlock, no hazard, complete sums, fits in memory");
  add_plan_flags(command, *options);
  CLI::Option* waits = command
                           ->add_option("--waits", options->waits,
                                        "tell whether item LATER of the training plan waits for EARLIER, and through "
                                        "what; NAME@STAGE where several stages have one")
                           ->type_name("LATER EARLIER")
                           ->expected(2);
  command->add_option("--frees", options->freed, "list what would begin earlier if this item took no time")
      ->excludes(waits);
  command->callback(
      [&chosen, options] { chosen = [options] { return alone("check", [&] { return check(*options); }); }; });
}

}  // namespace slipstream::cli

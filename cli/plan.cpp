// SPDX-License-Identifier: Apache-2.0
// slipstream plan and slipstream check: the plan printed, priced and proved without running it.

#include "cli/planned.h"
#include "engine/base/check.h"
#include "engine/base/files.h"

namespace slipstream::cli {

int plan(const PlanCommand& command) {
  if (command.search)
    throw ConfigError(
        "[plan] --search is not supported by this version. Try layouts by hand with --set parallel.data=N.");
  const Planned planned = make_plan(command);
  const comm::Rehearsal rehearsal = rehearse_step(planned);
  if (!command.schedule_csv.empty())
    files::write_file(command.schedule_csv, schedule_csv(planned.finished.job->options.schedule));
  command.json ? print_plan_json(planned, rehearsal) : print_plan(planned, rehearsal);
  require_holds(planned.finished.proof);
  require_fits(planned);
  return 0;
}

int check(const PlanCommand& command) {
  const Planned planned = make_plan(command);
  command.json ? print_proof_json(planned) : print_proof(planned);
  if (!planned.finished.proof.holds())
    throw PlanError("[check] the plan does not hold; see above. Please report it with the run file.");
  require_fits(planned);
  return 0;
}

}  // namespace slipstream::cli

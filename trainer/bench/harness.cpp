// SPDX-License-Identifier: Apache-2.0
// Starts a benchmark on all ranks and interleaves its candidates.

#include "trainer/bench/harness.h"

#include <cstdio>

#include "comm/mpi/launcher.h"
#include "engine/base/check.h"
#include "engine/config/validate.h"
#include "trainer/planner/options/initial_model.h"
#include "trainer/planner/options/plan_options.h"

namespace slipstream::bench {

int on_world(const BenchOptions& options, const std::function<void(const Setting&)>& benchmark) {
  runtime::World world;
  try {
    RunConfig config;
    world.together([&] {
      comm::require_no_foreign_launcher("bench");
      config = planner::load_run(options.run_file, options.sets);
      require_supported(config);
      if (options.steps < 1) throw ConfigError("[bench] --steps {} must be at least 1.", options.steps);
    });
    benchmark({world, runtime::assign_device(world, config), config});
    return 0;
  } catch (const runtime::AgreedFailure& failure) {
    return static_cast<int>(failure.code());
  } catch (const Error& error) {
    if (world.size() == 1) throw;
    std::fprintf(stderr, "slipstream: on rank %d: %s\n", world.rank(), error.what());
    world.abort(error.code());
  }
}

WorldBench::WorldBench(const Setting& setting, int threads)
    : world_(setting.world),
      assignment_(setting.assignment),
      config_(setting.config),
      threads_(threads > 0 ? threads : planner::threads_of(config_, world_.ranks_on_host())) {
  config_.device.threads = threads_;
}

void take_turns(runtime::World& world, const std::vector<Candidate*>& candidates, const Turns& turns) {
  for (int round = -turns.warm_up; round < turns.counted; ++round)
    for (Candidate* candidate : candidates) {
      world.barrier();
      candidate->run(turns.steps, round >= 0);
    }
  for (Candidate* candidate : candidates)
    candidate->means =
        runtime::gather_steps(world, candidate->times, {}, runtime::PlanItems(world, *candidate->job)).means;
}

}  // namespace slipstream::bench

// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every benchmark over ranks shares: it starts on all ranks in agreement, and its candidates take turns.

#include <functional>
#include <vector>

#include "bench/candidate.h"
#include "bench/options.h"

namespace slipstream::bench {

/// Blocks. Collective: reads the run file on every rank in agreement, then runs the benchmark. Returns the exit code;
/// on one rank errors are thrown, on several they end all of them.
int on_world(const BenchOptions& options,
             const std::function<void(runtime::World&, const runtime::DeviceAssignment&, const RunConfig&)>& benchmark);

struct Turns {
  int warm_up = 2;   // rounds before the first that counts
  int counted = 30;  // rounds that count
  int steps = 2;     // of a candidate in each round, back to back: see Candidate::run
};
/// Blocks. Collective. The candidates take turns, so that a busy machine slows all of them; afterwards every candidate
/// has its means over ranks.
void take_turns(runtime::World& world, const std::vector<Candidate*>& candidates, const Turns& turns);

}  // namespace slipstream::bench

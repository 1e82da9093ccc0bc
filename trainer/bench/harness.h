// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared parts of benchmarks over ranks: the start on all ranks in agreement, and interleaved candidates.

#include <functional>
#include <vector>

#include "trainer/bench/bench.h"
#include "trainer/bench/candidate.h"

namespace slipstream::bench {

/// The ranks and the run file of a benchmark.
struct Setting {
  runtime::World& world;
  runtime::DeviceAssignment assignment;
  RunConfig config;
};

/// Blocks. Collective: reads the run file on every rank in agreement, then runs the benchmark. Returns the exit code.
/// With one rank, errors are thrown. With several ranks, an error ends all of them.
int on_world(const BenchOptions& options, const std::function<void(const Setting&)>& benchmark);

/// The base of the benchmarks over ranks. They change the configuration before they build their jobs.
class WorldBench {
 protected:
  /// `threads` are those of each rank; 0: as in training.
  explicit WorldBench(const Setting& setting, int threads = 0);

  runtime::World& world_;
  const runtime::DeviceAssignment assignment_;
  RunConfig config_;
  const int threads_;
};

struct Turns {
  int warm_up = 2;   // the rounds before the first counted one
  int counted = 30;  // counted rounds
  int steps = 2;     // the steps of a candidate in each round, back to back; see Candidate::run
};
/// Blocks. Collective. Interleaves the candidates, so that a busy machine slows all of them. Afterwards, every
/// candidate has its means over ranks.
void take_turns(runtime::World& world, const std::vector<Candidate*>& candidates, const Turns& turns);

}  // namespace slipstream::bench

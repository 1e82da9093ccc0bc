// SPDX-License-Identifier: Apache-2.0
#pragma once
// slipstream calibrate: measures this host, or the hosts of a launcher, at the shapes of a run and writes a machine
// file.

#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "engine/config/host_times.h"
#include "trainer/bench/bench.h"
#include "trainer/runtime/rank/world.h"

namespace slipstream::bench {

struct CalibrateOptions : RunSource {
  int ranks = 0;        // the most ranks of this host that plans will have; 0: one per core
  std::string out;      // the path of the machine file
  double seconds = 25;  // the time of measuring
};

/// Blocks. Measures works with every number of threads that divides the cores, in layouts of up to `ranks` ranks, while
/// as many ranks compute as the cores hold. Then measures the verbs between ranks and writes the machine file. Under a
/// launcher, each rank measures works with its own threads, and the verbs are those between all ranks. Throws:
/// ConfigError for a run file without a legal layout, or on GPUs.
int calibrate(const CalibrateOptions& options);

/// Blocks. Measures verbs among 2 to `ranks` threads with the transport of ranks that share a host with `cores` cores.
/// Fills in HostTimes::verbs and emulated_ns.
void measure_verbs(int ranks, int cores, double seconds, HostTimes& host);

/// Blocks. Collective: measures verbs among the ranks of `by`, each with a busy thread beside it. Fills in
/// HostTimes::verbs.
void measure_verbs(runtime::World& world, comm::Communicator& by, double seconds, HostTimes& host);

/// Pins the calling thread, and threads that it starts later, to core `index` of this process's cores; -1 frees it.
/// Open MPI gives each rank a core of its own as long as there are as many cores.
void pin_to_core(int index);

}  // namespace slipstream::bench

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The environment variables by which launchers announce the processes of a job.

#include <string_view>

namespace slipstream::comm {

/// Did an MPI launcher start this process? Pure.
bool started_by_mpi_launcher();

/// The number of processes that an MPI launcher or srun announces; 1 where neither announces any. Pure.
int announced_ranks();

/// The number of this process among the announced processes; 0 where neither announces any. Pure.
int announced_rank();

/// For work that all ranks would share, in a world of one process. torchrun, sbatch and srun set variables without
/// starting MPI, and every process would then do all the work alone.
/// Throws: ConfigError if such a variable announces several processes and no MPI launcher started this one. The
/// sentence begins with `command`.
void require_no_foreign_launcher(std::string_view command);

}  // namespace slipstream::comm

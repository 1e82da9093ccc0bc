// SPDX-License-Identifier: Apache-2.0
// Reads the variables of Open MPI, MPICH, PMIx, Slurm and torchrun.

#include "comm/mpi/launcher.h"

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "engine/base/check.h"

namespace slipstream::comm {
namespace {

/// The number in a variable, or 1 if there is none.
int count_in(const char* name) {
  int count = 1;
  if (const char* text = std::getenv(name)) std::from_chars(text, text + std::strlen(text), count);
  return count;
}

}  // namespace

bool started_by_mpi_launcher() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"})
    if (std::getenv(name)) return true;
  return false;
}

int announced_ranks() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (std::getenv(name)) return count_in(name);
  return 1;
}

int announced_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (std::getenv(name)) return count_in(name);
  return 0;
}

void require_no_foreign_launcher(std::string_view command) {
  if (started_by_mpi_launcher()) return;
  for (const char* name : {"WORLD_SIZE", "SLURM_NTASKS"})
    if (const int ranks = count_in(name); ranks > 1)
      throw ConfigError(
          "[{}] {} = {} announces {} processes, but no MPI launcher started this one: it would run alone. Start the "
          "ranks with mpirun -np {}, or under Slurm with srun --mpi=pmix -n {}. For a run of one process: env -u {}.",
          command, name, ranks, ranks, ranks, ranks, name);
}

}  // namespace slipstream::comm

// SPDX-License-Identifier: Apache-2.0
// The world of a build without MPI, which has one process.

#include <cstdio>
#include <cstdlib>

#include "comm/host/host_communicator.h"
#include "comm/mpi/mpi_world.h"
#include "engine/base/check.h"

namespace slipstream::comm {

struct MpiWorld::State {};

MpiWorld::MpiWorld() : state_(std::make_unique<State>()) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const char* ranks = std::getenv(name); ranks && std::atoi(ranks) > 1)
      throw CommError(
          "[mpi] a launcher started {} ranks, but this build has no MPI. Install MPI and configure again with "
          "-Dmpi=enabled, or start one process.",
          ranks);
}
MpiWorld::~MpiWorld() = default;

int MpiWorld::rank() const { return 0; }
int MpiWorld::size() const { return 1; }
int MpiWorld::local_rank() const { return 0; }
int MpiWorld::local_size() const { return 1; }
int MpiWorld::host() const { return 0; }
void MpiWorld::barrier() {}
std::string MpiWorld::broadcast(const std::string& bytes, int) { return bytes; }
std::vector<std::string> MpiWorld::gather(const std::string& bytes, int) { return {bytes}; }
std::vector<std::string> MpiWorld::all_gather(const std::string& bytes) { return {bytes}; }
uint64_t MpiWorld::vote(uint64_t bits) { return bits; }
int64_t MpiWorld::clock_offset_ns() { return 0; }

void MpiWorld::abort(int exit_code) {
  std::fflush(nullptr);
  std::_Exit(exit_code);
}

std::string mpi_version() { return {}; }

std::unique_ptr<Communicator> make_mpi_communicator(MpiWorld&, const std::vector<int>& ranks, int channel,
                                                    const CommOptions& options) {
  if (ranks != std::vector<int>{0})
    throw CommError("[mpi] channel {} connects {} ranks, but this build has no MPI. Configure with -Dmpi=enabled.",
                    channel, ranks.size());
  return std::make_unique<HostCommunicator>(make_self_transport(), options);
}

std::unique_ptr<Communicator> make_library_communicator(MpiWorld&) {
  throw CommError("[mpi] this build has no MPI. Configure with -Dmpi=enabled.");
}

}  // namespace slipstream::comm

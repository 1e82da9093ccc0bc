// SPDX-License-Identifier: Apache-2.0
// Start and end of MPI, and the control plane.

#include "comm/mpi/mpi_world.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>

#include "comm/host/host_communicator.h"
#include "comm/mpi/launcher.h"
#include "comm/mpi/mpi_parts.h"
#include "engine/base/check.h"
#include "engine/device/clock.h"

namespace slipstream::comm {
namespace {

/// An early rank sleeps, because MPI's own wait would poll on a core that a late rank may need for computing.
void wait_asleep(MPI_Request& request, const char* what) {
  for (int done = 0; check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what), done == 0;)
    std::this_thread::sleep_for(std::chrono::microseconds(50));
}

/// Throws if MPI sees only one process of several: each would train alone, and all would write the same files.
void check_launcher_matches(int size) {
  const int announced = announced_ranks();
  if (announced > 1 && size == 1)
    throw CommError(
        "[mpi] the launcher started {} processes, but this program's MPI sees only one: launcher and MPI do not "
        "match. Use the mpirun "
        "of the MPI that the program was built with; with Slurm srun --mpi=pmix for Open MPI, srun --mpi=pmi2 for "
        "MPICH.",
        announced);
}

}  // namespace

struct MpiWorld::State {
  MPI_Comm control = MPI_COMM_NULL;  // null: a world of one without MPI
  MPI_Comm local = MPI_COMM_NULL;    // the ranks of this machine
  MPI_Comm leaders = MPI_COMM_NULL;  // the first rank of every machine; null on the others
  int rank = 0, size = 1, local_rank = 0, local_size = 1, host = 0;
  MPI_Request vote = MPI_REQUEST_NULL;
  uint64_t own_bits = 0, joined_bits = 0;
  int exceptions = std::uncaught_exceptions();
};

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return {};
  const std::string whole(text, static_cast<size_t>(length));
  return whole.substr(0, whole.find_first_of(",\n"));  // builder, place and date follow
}

MpiWorld::MpiWorld() : state_(std::make_unique<State>()) {
  if (!started_by_mpi_launcher()) {
    check_launcher_matches(1);
    return;
  }
  // A rank that waits inside MPI must leave its core to a computing thread. Open MPI reads this at its start.
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "start MPI");
  if (provided < MPI_THREAD_MULTIPLE)
    throw CommError(
        "[mpi] this MPI gives thread level {}, need MPI_THREAD_MULTIPLE ({}): every channel has a thread. Use "
        "an MPI that was built with it.",
        provided, int{MPI_THREAD_MULTIPLE});
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  // Ranks are numbered machine by machine, whatever the order of the launcher, so that the first axes of the mesh stay
  // within a machine.
  MPI_Comm machine = MPI_COMM_NULL;
  int first = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &first);
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, first, MPI_INFO_NULL, &machine),
            "find the ranks of this machine");
  check_mpi(MPI_Bcast(&first, 1, MPI_INT, 0, machine), "name this machine");
  MPI_Comm_free(&machine);
  check_mpi(MPI_Comm_split(MPI_COMM_WORLD, 0, first, &state_->control), "make the control channel");
  MPI_Comm_set_errhandler(state_->control, MPI_ERRORS_RETURN);
  MPI_Comm_rank(state_->control, &state_->rank);
  MPI_Comm_size(state_->control, &state_->size);
  check_launcher_matches(state_->size);
  check_mpi(MPI_Comm_split_type(state_->control, MPI_COMM_TYPE_SHARED, state_->rank, MPI_INFO_NULL, &state_->local),
            "find the ranks of this machine");
  MPI_Comm_rank(state_->local, &state_->local_rank);
  MPI_Comm_size(state_->local, &state_->local_size);
  check_mpi(
      MPI_Comm_split(state_->control, state_->local_rank == 0 ? 0 : MPI_UNDEFINED, state_->rank, &state_->leaders),
      "find the machines");
  state_->host = state_->rank;
  check_mpi(MPI_Bcast(&state_->host, 1, MPI_INT, 0, state_->local), "name this machine");
}

MpiWorld::~MpiWorld() {
  if (state_->control == MPI_COMM_NULL) return;
  // In a world of one no rank waits, and the error propagates to the code that prints it.
  if (state_->size > 1 && std::uncaught_exceptions() > state_->exceptions)
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(ExitCode::communication));
  if (state_->vote != MPI_REQUEST_NULL) wait_asleep(state_->vote, "vote");
  if (state_->leaders != MPI_COMM_NULL) MPI_Comm_free(&state_->leaders);
  MPI_Comm_free(&state_->local);
  MPI_Comm_free(&state_->control);
  MPI_Finalize();
}

int MpiWorld::rank() const { return state_->rank; }
int MpiWorld::size() const { return state_->size; }
int MpiWorld::local_rank() const { return state_->local_rank; }
int MpiWorld::local_size() const { return state_->local_size; }
int MpiWorld::host() const { return state_->host; }

void MpiWorld::barrier() {
  if (state_->size == 1) return;
  MPI_Request request;
  check_mpi(MPI_Ibarrier(state_->control, &request), "barrier");
  wait_asleep(request, "barrier");
}

uint64_t MpiWorld::vote(uint64_t bits) {
  if (state_->size == 1) return bits;
  if (state_->vote != MPI_REQUEST_NULL) wait_asleep(state_->vote, "vote");
  const uint64_t joined = state_->joined_bits;
  state_->own_bits = bits;
  check_mpi(
      MPI_Iallreduce(&state_->own_bits, &state_->joined_bits, 1, MPI_UINT64_T, MPI_BOR, state_->control, &state_->vote),
      "vote");
  return joined;
}

std::string MpiWorld::broadcast(const std::string& bytes, int root) {
  if (state_->size == 1) return bytes;
  int64_t size_bytes = std::ssize(bytes);
  check_mpi(MPI_Bcast(&size_bytes, 1, MPI_INT64_T, root, state_->control), "broadcast");
  std::string all = state_->rank == root ? bytes : std::string(static_cast<size_t>(size_bytes), '\0');
  constexpr int64_t kPiece = int64_t{1} << 28;
  for (int64_t begin = 0; begin < size_bytes; begin += kPiece)
    check_mpi(MPI_Bcast(all.data() + begin, static_cast<int>(std::min(kPiece, size_bytes - begin)), MPI_BYTE, root,
                        state_->control),
              "broadcast");
  return all;
}

std::vector<std::string> MpiWorld::gather(const std::string& bytes, int root) {
  if (state_->size == 1) return {bytes};
  const bool mine = state_->rank == root;
  const size_t size = static_cast<size_t>(state_->size);
  const int count = static_cast<int>(bytes.size());
  std::vector<int> counts(size), offsets(size);
  check_mpi(MPI_Gather(&count, 1, MPI_INT, counts.data(), 1, MPI_INT, root, state_->control), "gather");
  int64_t total = 0;
  for (size_t r = 0; r < size; ++r) {
    offsets[r] = static_cast<int>(total);
    total += counts[r];
  }
  if (total > INT32_MAX)
    throw CommError("[mpi] gather of {} bytes exceeds the limit of one call. Gather in parts.", total);
  std::string all(static_cast<size_t>(mine ? total : 0), '\0');
  check_mpi(MPI_Gatherv(bytes.data(), count, MPI_BYTE, all.data(), counts.data(), offsets.data(), MPI_BYTE, root,
                        state_->control),
            "gather");
  std::vector<std::string> parts;
  for (size_t r = 0; mine && r < size; ++r)
    parts.push_back(all.substr(static_cast<size_t>(offsets[r]), static_cast<size_t>(counts[r])));
  return parts;
}

std::vector<std::string> MpiWorld::all_gather(const std::string& bytes) {
  const std::vector<std::string> parts = gather(bytes, 0);
  std::vector<std::string> all;
  for (int r = 0; r < state_->size; ++r)
    all.push_back(broadcast(parts.empty() ? std::string() : parts[static_cast<size_t>(r)], 0));
  return all;
}

int64_t MpiWorld::clock_offset_ns() {
  constexpr int kRoundTrips = 8;
  if (state_->size == 1) return 0;
  int64_t offset_ns = 0;
  if (state_->leaders != MPI_COMM_NULL) {
    int machines = 1, machine = 0;
    MPI_Comm_size(state_->leaders, &machines);
    MPI_Comm_rank(state_->leaders, &machine);
    for (int other = 1; machine == 0 && other < machines; ++other)
      for (int i = 0; i < kRoundTrips; ++i) {
        int64_t now_ns = 0;
        check_mpi(MPI_Recv(&now_ns, 1, MPI_INT64_T, other, 0, state_->leaders, MPI_STATUS_IGNORE), "compare clocks");
        now_ns = monotonic_ns();
        check_mpi(MPI_Send(&now_ns, 1, MPI_INT64_T, other, 0, state_->leaders), "compare clocks");
      }
    std::vector<ClockReading> readings(machine == 0 ? 0 : kRoundTrips);
    for (ClockReading& reading : readings) {
      reading.asked_ns = monotonic_ns();
      check_mpi(MPI_Send(&reading.asked_ns, 1, MPI_INT64_T, 0, 0, state_->leaders), "compare clocks");
      check_mpi(MPI_Recv(&reading.theirs_ns, 1, MPI_INT64_T, 0, 0, state_->leaders, MPI_STATUS_IGNORE),
                "compare clocks");
      reading.answered_ns = monotonic_ns();
    }
    if (!readings.empty()) offset_ns = clock_offset_of(readings);
  }
  check_mpi(MPI_Bcast(&offset_ns, 1, MPI_INT64_T, 0, state_->local), "share the clock's offset");
  return offset_ns;
}

void MpiWorld::abort(int exit_code) {
  std::fflush(nullptr);
  if (state_->control != MPI_COMM_NULL) MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

std::unique_ptr<Communicator> make_mpi_communicator(MpiWorld& world, const std::vector<int>& ranks, int channel,
                                                    const CommOptions& options) {
  for (int rank : ranks)
    if (rank < 0 || rank >= world.size())
      throw CommError(
          "[mpi] a group names rank {}, but the world has ranks 0 to {}. Start more ranks, or change the "
          "layout.",
          rank, world.size() - 1);
  if (std::count(ranks.begin(), ranks.end(), world.rank()) != 1)
    throw CommError("[mpi] rank {} must appear exactly once among the {} ranks of its communicator.", world.rank(),
                    ranks.size());
  if (ranks.size() == 1) return std::make_unique<HostCommunicator>(make_self_transport(), options);
  MPI_Group all, members;
  check_mpi(MPI_Comm_group(world.state_->control, &all), "ask for the group");
  check_mpi(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &members), "make a group");
  MPI_Comm connection = MPI_COMM_NULL;
  const int outcome = MPI_Comm_create_group(world.state_->control, members, channel, &connection);
  MPI_Group_free(&members);
  MPI_Group_free(&all);
  check_mpi(outcome, fmt::format("connect the {} ranks of channel {}", ranks.size(), channel));
  return std::make_unique<HostCommunicator>(make_mpi_transport(connection, {options.share_memory, options.sockets}),
                                            options);
}

std::unique_ptr<Communicator> make_library_communicator(MpiWorld& world) {
  if (world.size() == 1) throw CommError("[mpi] one rank has no library's verbs. Start several ranks.");
  MPI_Comm connection = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(world.state_->control, &connection), "make a communicator of the library");
  return make_library_communicator(connection);
}

}  // namespace slipstream::comm

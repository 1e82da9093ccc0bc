// SPDX-License-Identifier: Apache-2.0
#pragma once
// The processes of a job: ranks and size, small exchanges for set-up, and communicators between them.

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/host/bind.h"

namespace slipstream::comm {

/// Owns MPI from start to end. A process that no launcher started is a world of one and does not call MPI.
///
/// The small exchanges block and are collective over all ranks; one thread calls them. If a world is destroyed while an
/// exception unwinds, it ends the whole job, because the other ranks would wait forever.
class MpiWorld {
 public:
  /// Blocks. Throws: CommError if a launcher started this process but MPI cannot serve several threads, or this build
  /// has no MPI.
  MpiWorld();
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int rank() const;
  int size() const;
  int local_rank() const;  // among the ranks on this machine
  int local_size() const;
  int host() const;  // identifies this machine: its lowest rank

  void barrier();
  /// Returns the `bytes` of `root`, on every rank.
  std::string broadcast(const std::string& bytes, int root);
  /// Returns one string per rank on `root`, and nothing elsewhere.
  std::vector<std::string> gather(const std::string& bytes, int root);
  std::vector<std::string> all_gather(const std::string& bytes);
  /// Collective. Joins this rank's bits to those of all ranks, and returns the joined bits of the previous call, 0 in
  /// the first. The exchange runs between two calls, so that no rank waits for a late one unless it is a whole call
  /// late. One rank: returns `bits`.
  uint64_t vote(uint64_t bits);
  /// The nanoseconds to add to this rank's monotonic_ns() to get rank 0's; 0 on the machine of rank 0. One rank of
  /// every other machine asks rank 0, one machine after the other, in 8 round trips. Clocks drift apart by about 10 us
  /// per second, so call this again before each use.
  int64_t clock_offset_ns();

  /// Ends all ranks with this exit code.
  [[noreturn]] void abort(int exit_code);

 private:
  friend std::unique_ptr<Communicator> make_mpi_communicator(MpiWorld&, const std::vector<int>&, int,
                                                             const CommOptions&);
  friend std::unique_ptr<Communicator> make_library_communicator(MpiWorld&);
  struct State;
  std::unique_ptr<State> state_;
};

/// Pure. Name and version of the MPI library, such as "Open MPI v4.1.4"; empty in a build without MPI.
std::string mpi_version();

/// Blocks. Collective among `ranks`, which are world ranks in group order and contain the caller. Makes a communicator
/// with a connection of its own. Every member must make its communicators in the same order. `channel` distinguishes
/// groups that are made at the same time.
/// Throws: CommError.
std::unique_ptr<Communicator> make_mpi_communicator(MpiWorld& world, const std::vector<int>& ranks, int channel,
                                                    const CommOptions& options = {});

/// Blocks. Collective. Makes a communicator of all ranks whose verbs are the MPI library's, for comparisons. It sums
/// float32 and float64 in the library's order.
/// Throws: CommError in a build without MPI.
std::unique_ptr<Communicator> make_library_communicator(MpiWorld& world);

}  // namespace slipstream::comm

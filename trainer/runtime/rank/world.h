// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ranks of this run: their identity, agreement, and a common end.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/emulate/emulate.h"
#include "comm/monitor.h"
#include "comm/nccl/nccl_table.h"
#include "engine/base/check.h"
#include "engine/plan/job.h"

namespace slipstream::comm {
class MpiWorld;
}

namespace slipstream::runtime {

/// A failure that all ranks know and that one rank has already printed.
class AgreedFailure : public Error {
 public:
  using Error::Error;
};

/// How channels are connected.
struct WireOptions {
  comm::NcclTable nccl;       // NCCL's resources on each channel
  comm::LinkTraffic traffic;  // the traffic of an emulated link
  bool sockets = true;        // connects machines by sockets, unless the network has faster ways; false: by MPI
  bool imitated = false;      // this rank is the only real one of its job; the others are imitated
};

/// While this object exists, the run is in one phase. Afterwards it is in the previous phase again.
class PhaseMark {
 public:
  PhaseMark(comm::Monitor* monitor, comm::RunPhase phase)
      : monitor_(monitor), before_(monitor ? monitor->enter(phase) : phase) {}
  ~PhaseMark() {
    if (monitor_) monitor_->enter(before_);
  }
  PhaseMark(const PhaseMark&) = delete;
  PhaseMark& operator=(const PhaseMark&) = delete;

 private:
  comm::Monitor* monitor_;
  comm::RunPhase before_;
};

class World {
 public:
  /// Blocks. Collective: starts MPI within the time limit of the start.
  explicit World(const comm::WaitLimits& limits = {});
  ~World();

  int rank() const;
  int size() const;
  int ranks_on_host() const;
  int rank_on_host() const;
  int host() const;  // identifies this machine by the lowest rank on it

  /// Blocks. Collective. Runs `stage` on every rank. If it throws an Error on any rank, the lowest rank with each
  /// distinct message prints it once, and every rank throws AgreedFailure.
  void together(const std::function<void()>& stage);
  /// Blocks. Collective. Returns every rank's bytes, by rank. `exchanged` names them, and is the same on all ranks.
  std::vector<std::string> all_gather(const std::string& bytes, const std::string& exchanged = "settings");
  /// Blocks. Collective. Returns true if `mine` is true on all ranks.
  bool all_agree(bool mine, const std::string& exchanged);
  /// Collective. Returns the joined bits of all ranks of the previous call; see comm::MpiWorld::vote.
  uint64_t vote(uint64_t bits);
  /// From now on, waits for other ranks have these limits. The first wait that exceeds its limit ends all ranks with
  /// code 6. Has no effect in a world of one.
  void limit(const comm::WaitLimits& limits);
  /// Ranks that a limit ends write flight records into this folder.
  void record_in(const std::string& folder);
  [[nodiscard]] PhaseMark phase(comm::RunPhase phase) { return {monitor_.get(), phase}; }
  /// Returns null in a world of one.
  comm::Monitor* monitor() { return monitor_.get(); }
  void barrier();
  /// Blocks. Collective. Returns the nanoseconds to add to this rank's clock to get rank 0's.
  int64_t clock_offset_ns();
  /// Ends all ranks with this code. Does not return if there are several.
  [[noreturn]] void abort(ExitCode code);
  /// Prints the sentence and ends this process with this code. The launcher ends the others. Any thread may call this,
  /// for a rank whose main thread is stuck, even inside MPI.
  [[noreturn]] void leave(const std::string& sentence, ExitCode code = ExitCode::communication);

  /// Blocks. Collective, in the same order on all ranks. Returns a communicator for every communication channel of
  /// `job`, on the wire of the run: NCCL between GPUs (`kind` cuda, whose device is the current one), else MPI; with an
  /// emulated link if `bytes_per_second` > 0.
  std::vector<std::unique_ptr<comm::Communicator>> communicators(const Job& job, double bytes_per_second,
                                                                 int64_t latency_ns, int64_t timeout_seconds,
                                                                 DeviceKind kind = DeviceKind::cpu,
                                                                 const WireOptions& wire = {});
  /// Blocks. Collective. Returns one communicator of all ranks on the same wire.
  std::unique_ptr<comm::Communicator> communicator(double bytes_per_second, int64_t latency_ns, int64_t timeout_seconds,
                                                   DeviceKind kind, const WireOptions& wire);
  /// Blocks. Collective. Returns the same with the MPI library's own verbs, for comparisons; see comm::MpiWorld.
  std::unique_ptr<comm::Communicator> library_communicator();

 private:
  /// Collective among all ranks. Connects rank `mine` of `group`. `index` counts the connections. Returns null for one
  /// GPU.
  std::unique_ptr<comm::Communicator> connect(const std::vector<int>& group, int mine, int index,
                                              const std::string& name, double timeout_seconds, DeviceKind kind,
                                              const WireOptions& wire);
  /// Runs a collective of hosts under the monitor.
  template <typename Body>
  void exchange(const std::string& exchanged, const Body& body) {
    if (!monitor_) return body();
    monitor_->begin(exchanged);
    try {
      body();
    } catch (...) {
      monitor_->end();
      throw;
    }
    monitor_->end();
  }
  void make_monitor(int rank);

  std::unique_ptr<comm::Monitor> monitor_;  // also observes the end of MPI
  std::unique_ptr<comm::MpiWorld> mpi_;
};

}  // namespace slipstream::runtime

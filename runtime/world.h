// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ranks of this run: identity, agreement and a common end.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/emulate/emulate.h"
#include "comm/nccl/nccl_table.h"
#include "comm/wait_limit.h"
#include "engine/base/check.h"
#include "engine/plan/job.h"

namespace slipstream::comm {
class MpiWorld;
}

namespace slipstream::runtime {

/// A failure that all ranks know and one rank has already printed.
class AgreedFailure : public Error {
 public:
  using Error::Error;
};

/// How channels are wired.
struct WireOptions {
  comm::NcclTable nccl;       // NCCL's resources on each channel
  comm::LinkTraffic traffic;  // of an emulated link
  bool imitated = false;      // this rank is the only real one of its job; the others are imitated
};

class World {
 public:
  World();
  ~World();

  int rank() const;
  int size() const;
  int ranks_on_host() const;
  int rank_on_host() const;
  int host() const;  // names this machine: the lowest rank on it

  /// Blocks. Collective. Runs `stage` on every rank. If it throws an Error on any rank, the lowest rank with each
  /// distinct message prints it once, and every rank throws AgreedFailure.
  void together(const std::function<void()>& stage);
  /// Blocks. Collective. Every rank's bytes, by rank. With `awaited`, the limit of limit_waits() applies.
  std::vector<std::string> all_gather(const std::string& bytes, const std::string& awaited = {});
  /// Blocks. Collective. True if it is true on all ranks.
  bool all_agree(bool mine, const std::string& awaited = {});
  /// Collective. Returns the joined bits of all ranks of the previous call; see comm::MpiWorld::vote.
  uint64_t vote(uint64_t bits);
  /// From now on, a named exchange that waits longer for other ranks ends this process with code 6, and the launcher
  /// ends the others. 0: no limit. No effect in a world of one.
  void limit_waits(double seconds);
  void barrier();
  /// Blocks. Collective. Nanoseconds to add to this rank's clock to get rank 0's.
  int64_t clock_offset_ns();
  /// Ends all ranks with this code. Does not return if there are several.
  [[noreturn]] void abort(ExitCode code);
  /// Prints the sentence and ends this process with this code; the launcher ends the others. Callable from any thread,
  /// for a rank whose main thread is stuck, in MPI as well.
  [[noreturn]] void leave(const std::string& sentence, ExitCode code = ExitCode::communication);

  /// Blocks. Collective, in the same order on all ranks: a communicator for every communication channel of `job`, on
  /// the wire of the run: NCCL between GPUs (`kind` cuda, whose device is the current one), else MPI; with an emulated
  /// link when `bytes_per_second` > 0.
  std::vector<std::unique_ptr<comm::Communicator>> communicators(const Job& job, double bytes_per_second,
                                                                 int64_t latency_ns, int64_t timeout_seconds,
                                                                 DeviceKind kind = DeviceKind::cpu,
                                                                 const WireOptions& wire = {});

 private:
  std::unique_ptr<comm::MpiWorld> mpi_;
  std::unique_ptr<comm::WaitLimit> limit_;
};

}  // namespace slipstream::runtime

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ranks of this run: who we are, what we agree on, and how we leave together.

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

/// A failure that all ranks know about and that one of them has already printed.
class AgreedFailure : public Error {
 public:
  using Error::Error;
};

/// How channels are wired.
struct WireOptions {
  comm::NcclTable nccl;       // what NCCL may use on each channel
  comm::LinkTraffic traffic;  // of an emulated link
  bool imitated = false;      // this rank is the only one of its job: the others are imitated
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

  /// Blocks. Collective. Runs `stage` on every rank; if it throws an Error anywhere, each distinct sentence is printed
  /// once, by the lowest rank that has it, and AgreedFailure leaves every rank.
  void together(const std::function<void()>& stage);
  /// Blocks. Collective. Every rank's bytes, by rank. One that says what is awaited is under the limit of
  /// limit_waits().
  std::vector<std::string> all_gather(const std::string& bytes, const std::string& awaited = {});
  /// Blocks. Collective. Do all ranks say yes?
  bool all_agree(bool mine, const std::string& awaited = {});
  /// From now on an exchange that has a name ends this process (code 6, at which the launcher ends the others) when it
  /// waits longer for other ranks. 0: no limit. Nothing in a world of one.
  void limit_waits(double seconds);
  void barrier();
  /// Blocks. Collective. Nanoseconds to add to this rank's clock to get rank 0's.
  int64_t clock_offset_ns();
  /// Ends all ranks with this code; does not return when there are several.
  [[noreturn]] void abort(ExitCode code);
  /// Prints the sentence and ends this process with this code, at which the launcher ends the others. From any thread:
  /// for a rank whose own is stuck, and with it MPI.
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

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Saves the state of a run: every rank writes its boxes, and rank 0 commits the manifest.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/store.h"
#include "engine/checkpoint/writer_pace.h"
#include "engine/config/resolve.h"
#include "engine/plan/job.h"
#include "trainer/runtime/durability/saved_state.h"
#include "trainer/runtime/rank/rank.h"
#include "trainer/runtime/rank/world.h"

namespace slipstream::runtime {

/// The fields of a manifest besides the state.
struct RunIdentity {
  std::string data_hash;
  int64_t vocab = 0;
  int64_t global_batch_size = 0;
  std::vector<std::pair<std::string, std::string>> config;  // the resolved value of every key
};
/// Pure.
std::vector<std::pair<std::string, std::string>> config_lines(const RunConfig& config);

/// Returns the manifest of this run without step, time, history and files. Pure.
checkpoint::Manifest manifest_of(int ranks, const std::vector<std::shared_ptr<const Job>>& stages,
                                 const RunIdentity& identity, int64_t skipped_batches);

class Checkpoints {
 public:
  Checkpoints(World& world, Rank& rank, std::vector<std::shared_ptr<const Job>> stages, const Checkpoint& options,
              RunIdentity identity);

  ~Checkpoints();

  /// Blocks. Collective. From now on, `dir` is the folder of the checkpoints as this rank reaches it. Removes what
  /// interrupted saves left. The checkpoint of `resumed_step` is never removed, and newer ones, which were skipped as
  /// damaged, do not count among those to keep; 0: there is none. Manifests have `skipped_batches`.
  void begin(const std::string& dir, int64_t resumed_step, int64_t skipped_batches);
  /// Blocks. Collective. Saves the state after `step`, at rest, and removes old checkpoints. Returns the reason of a
  /// failure, which is the same on all ranks; empty: the state is saved. A failure leaves earlier checkpoints
  /// unchanged. `numerics` is the history after that step. `hindrance` is the reason why rank 0 must not commit; empty:
  /// it may.
  /// Throws: NumericsError on all ranks if a weight is not finite.
  std::string save(int64_t step, const checkpoint::NumericsHistory& numerics, const std::string& hindrance);

  /// Blocks. Collective. Begins to save the state after `step` from the snapshot that Rank::issue(step + 1, true)
  /// makes. Returns the reason of a failure as save() does. Nothing may be in flight.
  std::string begin_async(int64_t step);
  /// Returns the step that is being saved; 0: none is.
  int64_t in_flight() const { return in_flight_; }
  /// Does not wait. Starts this rank's writer when the snapshot is complete. Returns true while its file is not
  /// written.
  bool is_writing();
  /// Warns, once in a run, if this rank's writer has not ended although the checkpoint of `step` is due.
  void warn_of_wait(int64_t step);
  /// Blocks. Collective. Waits for the writers of all ranks, without their limits, and then ends as save() does.
  std::string finish(const checkpoint::NumericsHistory& numerics, const std::string& hindrance);

  /// Returns the step of the newest checkpoint, or 0 without one.
  int64_t newest_step() const { return newest_step_; }

 private:
  std::string write(const ReadState& read, checkpoint::WriterPace* pace) const;
  std::string commit(int64_t step, const checkpoint::NumericsHistory& numerics, const std::string& report,
                     const std::string& hindrance);

  World& world_;
  Rank& rank_;
  std::vector<std::shared_ptr<const Job>> stages_;
  Checkpoint options_;
  RunIdentity identity_;
  checkpoint::KeptSteps kept_;
  int64_t skipped_batches_ = 0, newest_step_ = 0, in_flight_ = 0;
  std::string folder_;                          // the folder of the save in flight
  std::optional<checkpoint::WriterPace> pace_;  // the pace of the writer
  std::thread writer_;
  std::atomic<bool> written_ = false;
  bool warned_of_wait_ = false;
  std::string report_;  // about this rank's part; the writer sets it before written_
};

}  // namespace slipstream::runtime

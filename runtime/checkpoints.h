// SPDX-License-Identifier: Apache-2.0
#pragma once
// Saves the state of a run: every rank writes its boxes, rank 0 commits the manifest.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/config/resolve.h"
#include "engine/plan/job.h"
#include "runtime/rank.h"
#include "runtime/world.h"

namespace slipstream::runtime {

/// What a manifest tells of a run besides its state.
struct RunIdentity {
  std::string data_hash;
  int64_t vocab = 0;
  int64_t global_batch_size = 0;
  std::vector<std::pair<std::string, std::string>> config;  // of every key, as resolved
};
/// Pure.
std::vector<std::pair<std::string, std::string>> config_lines(const RunConfig& config);

/// Bytes of a checkpoint on disk: the weights and states of all tensors, without headers. Pure.
int64_t checkpoint_bytes(const std::vector<std::shared_ptr<const Job>>& stages);

class Checkpoints {
 public:
  Checkpoints(World& world, Rank& rank, std::vector<std::shared_ptr<const Job>> stages, const Checkpoint& options,
              RunIdentity identity);

  /// Blocks. Collective. Removes what interrupted saves left. `resumed_step`: its checkpoint is never removed; 0: none.
  void begin(int64_t resumed_step);
  /// Blocks. Collective. Saves the state after `step`, at rest, and removes old checkpoints. Returns the reason of a
  /// failure, the same on all ranks; empty: saved. A checkpoint that was there before is unchanged by a failure.
  /// Throws: NumericsError on all ranks if a weight is not finite.
  std::string save(int64_t step);

  /// The step of the newest checkpoint, 0 without one.
  int64_t newest_step() const { return newest_step_; }

 private:
  World& world_;
  Rank& rank_;
  std::vector<std::shared_ptr<const Job>> stages_;
  Checkpoint options_;
  RunIdentity identity_;
  int64_t resumed_step_ = 0, newest_step_ = 0;
};

}  // namespace slipstream::runtime

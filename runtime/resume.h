// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds the checkpoint that a run continues from, and refuses one of another run.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "runtime/checkpoints.h"
#include "runtime/world.h"

namespace slipstream::runtime {

class MemoryState;

struct ResumePoint {
  std::string path;  // of a checkpoint, or "memory of 3 hosts"
  checkpoint::Manifest manifest;
  std::shared_ptr<MemoryState> memory = {};           // null: a checkpoint
  std::optional<std::array<double, 4>> results = {};  // of that step, as Rank::Report; of a state in memory
};

/// Blocks. Collective. The newest checkpoint in `dir` whose files all verify; ranks share the reading. Prints the
/// reason for every newer one that it skips. None if `dir` has no checkpoint. Those behind `most_step` do not count.
/// With `otherwise`, only newer checkpoints count, and it is the result if none of them verifies.
/// Throws on all ranks: CheckpointError if there are some, but none verifies.
std::optional<ResumePoint> find_resume_point(World& world, const std::string& dir, int64_t most_step = INT64_MAX,
                                             std::optional<ResumePoint> otherwise = {});

/// Prints the settings that differ from those of the checkpoint. Pure otherwise.
/// Throws: CheckpointError if the model, its optimizer or its type differ; ConfigError if a setting of the training
/// differs that is not in `sets` (KEY=VALUE): layout, output and reporting may differ freely.
void require_resumable(const ResumePoint& point, const RunIdentity& identity,
                       const std::vector<checkpoint::LogicalTensor>& tensors, const std::vector<std::string>& sets);

}  // namespace slipstream::runtime

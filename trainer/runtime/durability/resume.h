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
#include "trainer/runtime/durability/checkpoints.h"
#include "trainer/runtime/rank/world.h"

namespace slipstream::runtime {

class MemoryState;

struct ResumePoint {
  std::string path;  // of a checkpoint, or "memory of 3 hosts"
  checkpoint::Manifest manifest;
  std::shared_ptr<MemoryState> memory = {};           // null: a checkpoint
  std::optional<std::array<double, 4>> results = {};  // of that step, as Rank::Report; of a state in memory
  bool verified = true;                   // else the hashes of its files are to be compared when they are read
  std::vector<std::string> skipped = {};  // folders of newer checkpoints that could not be used
};

/// A checkpoint turned out to be damaged when it was read: no state was restored. On all ranks.
class DamagedCheckpoint : public CheckpointError {
 public:
  /// `problem`: the reason, without the folder's name.
  explicit DamagedCheckpoint(const std::string& problem) : CheckpointError("{}", problem) {}
};

struct ResumeSearch {
  int64_t most_step = INT64_MAX;  // checkpoints behind it do not count
  /// With one, only newer checkpoints count, and it is the result if none of them can be used.
  std::optional<ResumePoint> otherwise = {};
  /// Compare hashes? Else only manifests and the sizes of files, so that resuming reads each byte once.
  bool verifies = true;
  /// Checkpoints behind `most_step` that could not be used: sentences for the error, and their folders.
  std::vector<std::string> reasons = {}, skipped = {};
};

/// Blocks. Collective. The newest checkpoint in `dir` whose files all verify; ranks share the reading. Prints the
/// reason for every newer one that it skips. None if `dir` has no checkpoint.
/// Throws on all ranks: CheckpointError if there are some, but none verifies.
std::optional<ResumePoint> find_resume_point(World& world, const std::string& dir, ResumeSearch search = {});

/// Blocks. Collective. Gives the folders of skipped checkpoints another name. Otherwise a later start might read one of
/// them, after a passing error, and would continue behind lines of metrics that this run has removed. Only under the
/// lock of checkpoint.dir. Throws on all ranks: ResourceError if one cannot be renamed.
void set_aside(World& world, const std::vector<std::string>& folders);

/// The files of a checkpoint that this rank verifies. Pure.
std::vector<checkpoint::StateFile> own_files(const World& world, const checkpoint::Manifest& manifest);
/// Blocks. Collective. The problem of the lowest rank with one; empty: there is none.
std::string first_problem(World& world, std::string problem);

/// Prints the settings that differ from those of the checkpoint. Pure otherwise.
/// Throws: CheckpointError if the model, its optimizer or its type differ; ConfigError if a setting of the training
/// differs that is not in `sets` (KEY=VALUE): layout, output and reporting may differ freely.
void require_resumable(const ResumePoint& point, const RunIdentity& identity,
                       const std::vector<checkpoint::LogicalTensor>& tensors, const std::vector<std::string>& sets);

}  // namespace slipstream::runtime

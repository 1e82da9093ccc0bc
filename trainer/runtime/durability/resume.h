// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds the checkpoint that a run continues from, and refuses one that belongs to another run.

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
  std::string path;  // the path of a checkpoint, or "memory of 3 hosts"
  checkpoint::Manifest manifest;
  std::shared_ptr<MemoryState> memory = {};  // null: the state is a checkpoint
  /// For a state in memory: the results of that step, as Rank::Report.
  std::optional<std::array<double, 4>> results = {};
  bool verified = true;                   // false: the hashes of its files must be compared when they are read
  std::vector<std::string> skipped = {};  // the folders of newer checkpoints that could not be used
};

/// A checkpoint was found to be damaged when it was read, and no state was restored. All ranks throw it.
class DamagedCheckpoint : public CheckpointError {
 public:
  /// `problem` is the reason without the folder's name.
  explicit DamagedCheckpoint(const std::string& problem) : CheckpointError("{}", problem) {}
};

struct ResumeSearch {
  int64_t most_step = INT64_MAX;  // later checkpoints do not count
  /// If it is set, only newer checkpoints count, and it is the result if none of them can be used.
  std::optional<ResumePoint> otherwise = {};
  /// True: hashes are compared. False: only manifests and the sizes of files are read, so that resuming reads each byte
  /// once.
  bool verifies = true;
  /// The checkpoints after `most_step` that could not be used: sentences for the error, and their folders.
  std::vector<std::string> reasons = {}, skipped = {};
};

/// Blocks. Collective. Returns the newest checkpoint in `dir` whose files all verify. The ranks share the reading.
/// Prints the reason for every newer one that it skips. Returns none if `dir` has no checkpoint.
/// Throws on all ranks: CheckpointError if there are checkpoints, but none verifies.
std::optional<ResumePoint> find_resume_point(World& world, const std::string& dir, ResumeSearch search = {});

/// Blocks. Collective. Gives the folders of skipped checkpoints another name. Otherwise a later start might read one of
/// them, after an error that does not occur again, and would continue after lines of metrics that this run has removed.
/// Only the owner of the lock of checkpoint.dir may call this. Throws on all ranks: ResourceError if a folder cannot be
/// renamed.
void set_aside(World& world, const std::vector<std::string>& folders);

/// Returns the files of a checkpoint that this rank verifies. Pure.
std::vector<checkpoint::StateFile> own_files(const World& world, const checkpoint::Manifest& manifest);
/// Blocks. Collective. Returns the problem of the lowest rank that has one; empty: there is none.
std::string first_problem(World& world, std::string problem);

/// Prints the settings that differ from those of the checkpoint. Otherwise pure.
/// Throws: CheckpointError if the model, its optimizer or its type differ; ConfigError if a setting of the training
/// differs that is not in `sets` (KEY=VALUE). Layout, output and reporting may differ.
void require_resumable(const ResumePoint& point, const RunIdentity& identity,
                       const std::vector<checkpoint::LogicalTensor>& tensors, const std::vector<std::string>& sets);

}  // namespace slipstream::runtime

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The folder of a run's checkpoints: DIR/step-00000120/{rank-0000.safetensors, .., manifest.json}.
//
// The order of a commit is: files, fsync, manifest, fsync, rename of the folder, fsync of DIR. Until the rename the
// folder is called step-00000120.tmp, which nothing reads.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"

namespace slipstream::checkpoint {

/// Returns "step-00000120". Pure.
std::string name_of_step(int64_t step);

struct Found {
  int64_t step = 0;  // the step in the folder's name
  std::string path;
  std::optional<Manifest> manifest;  // none: the folder is no checkpoint
  std::string problem;               // the reason, if it is no checkpoint
};

/// Blocks. Returns the folders of checkpoints in `dir`, the latest step first, or nothing if `dir` does not exist.
/// Reads the manifests, but not the files.
std::vector<Found> find_checkpoints(const std::string& dir);

/// Blocks. Returns the names in the folder of a checkpoint that its manifest does not list, sorted. Readers ignore
/// them.
std::vector<std::string> unlisted_files(const std::string& path, const Manifest& manifest);

/// Returns the path of the folder in `dir` that begin_checkpoint() makes. Pure.
std::string unfinished_path(const std::string& dir, int64_t step);
/// Blocks. Makes an empty folder for the files of a step and returns its path. Removes the folder of an interrupted
/// save. Throws: ResourceError.
std::string begin_checkpoint(const std::string& dir, int64_t step);
/// Blocks. Writes the manifest into the folder and gives the folder its final name, which replaces an older checkpoint
/// of that step. Returns the path. Throws: ResourceError; then an older checkpoint of that step is unchanged.
std::string commit_checkpoint(const std::string& dir, const Manifest& manifest);
/// Blocks. Removes the folder of a save that failed. Ignores errors, because the next start tries again.
void drop_checkpoint(const std::string& dir, int64_t step);

/// Blocks. Renames the folder of a checkpoint to FOLDER.skipped-N, which nothing reads, and returns that name.
/// Throws: ResourceError.
std::string set_aside(const std::string& path);

/// Blocks. Removes the folders that interrupted saves and removals left.
void clean_leftovers(const std::string& dir);
/// The checkpoints that remove_old() always keeps, and those that it does not count.
struct KeptSteps {
  int64_t resumed = 0;          // never removed
  std::set<int64_t> damaged{};  // not counted among those that stay
};

/// Blocks. Removes every committed checkpoint that is older than `keep` sound ones. A folder without a valid manifest
/// does not count and stays. Folders of set_aside() are removed when checkpoints of their step would be. Returns a
/// sentence for every removal that failed.
std::vector<std::string> remove_old(const std::string& dir, int64_t keep, const KeptSteps& kept);

}  // namespace slipstream::checkpoint

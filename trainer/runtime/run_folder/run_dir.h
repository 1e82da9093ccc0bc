// SPDX-License-Identifier: Apache-2.0
#pragma once
// The folders that a run writes: locks against other jobs, older results, and files.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/folder.h"
#include "trainer/runtime/run_folder/folder_lock.h"

namespace slipstream::runtime {

struct RunFolders {
  std::string output;            // output.dir
  std::string checkpoints;       // checkpoint.dir
  int64_t weights_bytes = 0;     // for the final weights
  int64_t checkpoint_bytes = 0;  // for one checkpoint
  int64_t checkpoints_kept = 0;  // at the same time, including the one that is being written
  /// The step whose checkpoint this run continues. If there is one, nothing is moved, and metrics.jsonl keeps the lines
  /// up to it.
  std::optional<int64_t> resumed_step = {};
  int64_t last_traced_step = 0;           // in trace.steps
  std::vector<std::string> skipped = {};  // newer checkpoints, which get another name (checkpoint::set_aside)
};

/// Blocks. Throws: ConfigError if `weights`, a folder that a new run begins with (model.init), or one of its files is
/// among the older results that the run moves.
void require_unmoved(const RunFolders& folders, const std::string& weights);

class RunDir {
 public:
  /// Blocks. Only rank 0 creates the folders and moves older results: the files of an older run in the output folder to
  /// DIR.old-N, older final weights to final.old-N, and older checkpoints outside of the output folder to
  /// step-NUMBER.old-N, each with a message. All other files stay.
  /// Throws: CheckpointError if another job uses a folder; ResourceError if a folder cannot be written or has too
  /// little space.
  RunDir(const RunFolders& folders, bool create);
  ~RunDir();
  RunDir(const RunDir&) = delete;
  RunDir& operator=(const RunDir&) = delete;

  /// Blocks. Every rank calls this after rank 0 has returned from the constructor. From now on, this object writes into
  /// these very folders, even if their paths later name others. Throws: ResourceError if this rank has no
  /// checkpoint.dir.
  void open();
  /// Blocks. Must be called before anything is written or renamed. Throws: CheckpointError if a folder was moved,
  /// replaced or removed, or if another job has taken it over.
  void require_in_place() const;
  /// Returns the name of a file for messages.
  std::string path(std::string_view name) const { return dir_ + "/" + std::string(name); }
  /// Returns a path of the same file for calls while this object exists; see files::Folder.
  std::string place(std::string_view name) const { return output_ ? output_->at(name) : path(name); }
  /// Returns the folder of the checkpoints in the same way, or a name in it.
  std::string checkpoint_place(std::string_view name = {}) const { return checkpoints_->at(name); }
  /// Blocks. Writes a complete file that survives a power failure, or throws; see files::write_file.
  void write(std::string_view name, std::string_view content) const;
  /// Blocks. Appends a line to another file of lines, which it creates if necessary. A failure is a warning.
  void append_report(std::string_view name, std::string_view line) const;
  /// Blocks. Removes the lines of later steps than `step` from metrics.jsonl and from reports. Has no effect on ranks
  /// other than 0.
  void keep_metrics(int64_t step);
  /// Blocks. Returns the step of the last line of metrics.jsonl; 0 without one.
  int64_t last_metrics_step() const;
  /// Appends a line to metrics.jsonl. If the disk is full or fails, the line waits in memory for the next call, with a
  /// warning. Throws: ResourceError if too many lines wait.
  void append_metrics(std::string_view line);
  /// Blocks. Brings the lines of metrics.jsonl to disk. Returns the reason of a failure, which the next call repairs if
  /// the disk works again; empty: all lines are on disk.
  std::string sync_metrics();

 private:
  void move_older(const RunFolders& folders) const;
  void lock_checkpoints(const std::string& folder);
  void open_metrics();
  void rewrite_lines(int64_t step);
  /// Throws: ResourceError. Then no line is half written.
  void write_waiting();

  std::string dir_, checkpoints_dir_;
  std::optional<files::Folder> output_, checkpoints_;
  std::optional<FolderLock> output_lock_, checkpoints_lock_;
  int metrics_ = -1;
  int64_t looked_ns_ = 0;     // when require_in_place() was last called for a line
  std::string waiting_;       // lines that are not written yet
  bool sync_failed_ = false;  // the kernel may have dropped lines that it took
};

}  // namespace slipstream::runtime

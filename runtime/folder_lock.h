// SPDX-License-Identifier: Apache-2.0
#pragma once
// Keeps two jobs out of one folder.

#include <string>
#include <string_view>

namespace slipstream::runtime {

/// The file DIR/lock names the job that writes into DIR: host, process, start, where the process can be seen, and its
/// place in a Slurm queue. Another job takes the folder over only if the former one has ended for certain:
///   on the same host, the kernel has dropped the lock of the ended process; where a file system has no locks, the
///   process is gone;
///   on any host, Slurm has queued the same job again, which it does behind the end of the start before.
/// Otherwise the job refuses, because a process on another host cannot be seen.
class FolderLock {
 public:
  /// `dir` exists and is the value of the setting `key`. Throws: CheckpointError if another job has the folder,
  /// ResourceError if it cannot be written.
  FolderLock(const std::string& dir, std::string_view key);
  /// Removes the file, also after its folder has moved; a file that another job has put in its place stays.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Has the folder moved since?
  bool has_moved() const;

 private:
  std::string path_;
  int file_ = -1;
};

}  // namespace slipstream::runtime

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Keeps two jobs from writing into one folder.

#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace slipstream::runtime {

/// The file DIR/lock names the job that writes into DIR: host, process, start, where the process can be seen, its
/// place in a Slurm queue, and its lease. The job renews the file every ten seconds. Another job takes the folder over,
/// with a note, only if the former one has ended for certain, or has no claim to it any more:
///   on the same host, which is known by its boot id or its name, the kernel has dropped the lock of the ended process;
///   where a file system has no locks, the process, or the one that started with its number, no longer exists;
///   on any host, Slurm has queued the same job again, which it does after the end of the start before;
///   on any host, the file has not been renewed for the time of the lease. A job that comes back later sees that the
///   file names another one, and ends (is_lost()).
/// Otherwise the job refuses, because a process on another host cannot be seen.
class FolderLock {
 public:
  /// Blocks. `dir` exists and is the value of the setting `key`. Throws: CheckpointError if another job has the folder;
  /// ResourceError if it cannot be written.
  FolderLock(const std::string& dir, std::string_view key);
  /// Removes the file, even after its folder has moved. A file that another job has put in its place stays.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Returns true if the folder has moved since.
  bool has_moved() const;
  /// Blocks. Returns true if the file now names another job.
  bool is_lost() const;

 private:
  void renew();
  /// Returns true if the file that this object has locked still has its line.
  bool owns() const;

  std::string path_, owner_;  // owner_ is the line of this job
  int file_ = -1;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;  // guarded by mutex_
  std::thread renews_;
};

}  // namespace slipstream::runtime

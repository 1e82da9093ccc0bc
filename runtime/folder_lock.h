// SPDX-License-Identifier: Apache-2.0
#pragma once
// Keeps two jobs out of one folder.

#include <string>
#include <string_view>

namespace slipstream::runtime {

/// The file DIR/lock names the host, the process and the start of the job that writes into DIR. The kernel drops the
/// lock on it when the process ends for any reason. Another job on the same host then takes the folder over; a job on
/// another host cannot see whether the process lives, and refuses.
class FolderLock {
 public:
  /// `dir` exists and is the value of the setting `key`. Throws: CheckpointError if another job has the folder,
  /// ResourceError if it cannot be written.
  FolderLock(const std::string& dir, std::string_view key);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::string path_;
  int file_ = -1;
};

}  // namespace slipstream::runtime

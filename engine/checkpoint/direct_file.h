// SPDX-License-Identifier: Apache-2.0
#pragma once
// Large files from front to back, past the page cache. Through it, a checkpoint of 1 GB costs the kernel a copy, the
// pages and threads that write them back, on cores that compute (measured: 0.3 to 2.4 s of CPU time, 0.02 s without).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace slipstream::checkpoint {

/// A file of known size under a temporary name, which gets its final name in commit(). Without commit() the destructor
/// removes it, and an older file at `path` is unchanged. File systems that refuse direct writes get ordinary ones.
class DirectWriter {
 public:
  /// Takes the space of the file. `threads` write beside the caller, so that the disk has several requests at a time;
  /// 0: the caller writes. Needs 1 MiB of memory for each thread and the caller.
  /// Throws: ResourceError if the folder is missing or cannot be written, or the disk is full.
  DirectWriter(const std::string& path, int64_t size_bytes, int threads);
  DirectWriter(const DirectWriter&) = delete;
  DirectWriter& operator=(const DirectWriter&) = delete;
  ~DirectWriter();

  /// Blocks. The next bytes. Throws: ResourceError if the disk is full or fails; it may be the error of earlier bytes.
  void write(const void* bytes, int64_t size_bytes);
  /// Blocks. Data to disk, then the rename, then the folder's entry to disk. Once, after all bytes.
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Blocks. Calls take(bytes) on this thread with all bytes of a file of checkpoints, in order, while other threads read
/// ahead. Needs 16 MiB of memory.
/// Throws: CheckpointError as files::InputFile, errors of `take`.
void read_through(const std::string& path, const std::function<void(std::span<const std::byte>)>& take);

}  // namespace slipstream::checkpoint

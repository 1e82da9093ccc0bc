// SPDX-License-Identifier: Apache-2.0
#pragma once
// Failed and slow writes: what a user can do about an error of the disk, and which file a thread waits for.

#include <string>
#include <string_view>

namespace slipstream::files {

/// Returns a sentence that names the cause of the error number and its remedy, without space around it. `other` is the
/// way around this disk, for instance "set output.dir to another folder". Pure.
std::string disk_remedy(int error, std::string_view other = "choose another folder");

/// Throws: ResourceError that names the path, what could not be done ("written"), the error and its remedy. `path` has
/// the form that files::shown() returns.
[[noreturn]] void disk_failed(const std::string& path, std::string_view what, int error,
                              std::string_view other = "choose another folder");

/// While this object exists, its thread counts as waiting until `path` is on disk. `path` has the form that
/// files::shown() returns.
class DiskWait {
 public:
  explicit DiskWait(const std::string& path);
  DiskWait(const DiskWait&) = delete;
  DiskWait& operator=(const DiskWait&) = delete;
  ~DiskWait();
};

/// Returns the longest wait of this process, as "writing "PATH" to disk for 12 s", or an empty text if no thread waits.
/// Any thread may call it.
std::string longest_disk_wait();

}  // namespace slipstream::files

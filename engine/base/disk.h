// SPDX-License-Identifier: Apache-2.0
#pragma once
// Failed and slow writes: what to do about an error of the disk, and which file a thread waits for.

#include <string>
#include <string_view>

namespace slipstream::files {

/// A sentence by the cause of the error number, without space around it. `other` is the way around the disk, for
/// instance "set output.dir to another folder". Pure.
std::string disk_remedy(int error, std::string_view other = "choose another folder");

/// `path` is as files::shown() writes it. Throws: ResourceError that names it, what could not be done ("written"), the
/// error and its remedy.
[[noreturn]] void disk_failed(const std::string& path, std::string_view what, int error,
                              std::string_view other = "choose another folder");

/// While it exists, this thread waits until `path`, as files::shown() writes it, is on disk.
class DiskWait {
 public:
  explicit DiskWait(const std::string& path);
  DiskWait(const DiskWait&) = delete;
  DiskWait& operator=(const DiskWait&) = delete;
  ~DiskWait();
};

/// The longest of these waits in this process: "writing "PATH" to disk for 12 s". Empty: no thread waits. From any
/// thread.
std::string longest_disk_wait();

}  // namespace slipstream::files

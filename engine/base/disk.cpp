// SPDX-License-Identifier: Apache-2.0
// Maps error numbers to remedies, and keeps a table of the threads that wait for the disk.

#include "engine/base/disk.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include <fmt/core.h>

#include "engine/base/check.h"

namespace slipstream::files {
namespace {

using Clock = std::chrono::steady_clock;

struct Wait {
  std::string path;
  Clock::time_point began;
};

struct Waits {
  std::mutex mutex;
  std::map<std::thread::id, Wait> by_thread;  // a thread waits for one file at a time
};

Waits& waits() {
  static Waits all;
  return all;
}

}  // namespace

std::string disk_remedy(int error, std::string_view other) {
  switch (error) {
    case ENOSPC:
      return fmt::format("Free space, or {}.", other);
    case EDQUOT:
      return fmt::format("The quota of this user is used up: free space in it, raise it, or {}.", other);
    case EFBIG:
      return fmt::format("The file exceeds a size limit: see ulimit -f and the file system's limit, or {}.", other);
    case EACCES:
    case EPERM:
      return fmt::format("This user may not write there: change the permissions or the owner, or {}.", other);
    case EROFS:
      return fmt::format("The file system is mounted read-only: mount it writable, or {}.", other);
    case EIO:
    case ENXIO:
    case ENODEV:
      return fmt::format("The disk fails: look at the system log (dmesg) and check the disk, or {}.", other);
    case ESTALE:
    case ENOTCONN:
    case ETIMEDOUT:
    case EHOSTDOWN:
      return fmt::format("The connection to the file server failed: mount the file system again, or {}.", other);
    case ENOENT:
    case ENOTDIR:
      return fmt::format("A folder of this path does not exist: create it, or {}.", other);
    case EMFILE:
    case ENFILE:
      return fmt::format("Too many files are open: raise the limit (ulimit -n), or {}.", other);
    case ENAMETOOLONG:
      return fmt::format("The path is too long: {}.", other);
    default:
      return fmt::format("Check the disk and its file system, or {}.", other);
  }
}

void disk_failed(const std::string& path, std::string_view what, int error, std::string_view other) {
  throw ResourceError("[disk] {} cannot be {}: {}. {}", path, what, std::strerror(error), disk_remedy(error, other));
}

DiskWait::DiskWait(const std::string& path) {
  const std::lock_guard lock(waits().mutex);
  waits().by_thread[std::this_thread::get_id()] = {path, Clock::now()};
}

DiskWait::~DiskWait() {
  const std::lock_guard lock(waits().mutex);
  waits().by_thread.erase(std::this_thread::get_id());
}

std::string longest_disk_wait() {
  const std::lock_guard lock(waits().mutex);
  const Wait* longest = nullptr;
  for (const auto& [thread, wait] : waits().by_thread)
    if (longest == nullptr || wait.began < longest->began) longest = &wait;
  if (longest == nullptr) return {};
  return fmt::format("writing {} to disk for {:.0f} s", longest->path,
                     std::chrono::duration<double>(Clock::now() - longest->began).count());
}

}  // namespace slipstream::files

// SPDX-License-Identifier: Apache-2.0
// Locks DIR/lock and writes its owner into it: "HOST PID START".

#include "runtime/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <sstream>

#include "engine/base/check.h"

namespace slipstream::runtime {
namespace {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "unknown";
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  char text[32] = {};
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", ::gmtime_r(&now, &parts));
  return text;
}

struct LockOwner {
  std::string host, process, start;
};

LockOwner owner_in(int file) {
  char text[512] = {};
  LockOwner owner;
  if (::pread(file, text, sizeof text - 1, 0) > 0)
    std::istringstream(text) >> owner.host >> owner.process >> owner.start;
  return owner;
}

/// Does the path still name this open file? Its former owner deletes it at its end.
bool names(const std::string& path, int file) {
  struct stat named {
  }, opened{};
  return ::stat(path.c_str(), &named) == 0 && ::fstat(file, &opened) == 0 && named.st_ino == opened.st_ino;
}

/// Replaces what the file has. A write may take a part of the bytes.
bool rewrite(int file, const std::string& text) {
  if (::ftruncate(file, 0) != 0) return false;
  for (size_t done = 0; done < text.size();) {
    const ssize_t put = ::pwrite(file, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (put < 0 && errno != EINTR) return false;
    if (put > 0) done += static_cast<size_t>(put);
  }
  return true;
}

}  // namespace

FolderLock::FolderLock(const std::string& dir, std::string_view key) : path_(dir + "/lock") {
  while (true) {
    file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file_ < 0)
      throw ResourceError("[disk] {} cannot be written: {}. Set {} to a writable folder.", path_, std::strerror(errno),
                          key);
    const bool locked = ::flock(file_, LOCK_EX | LOCK_NB) == 0;
    const bool lives = !locked && errno == EWOULDBLOCK;
    const LockOwner owner = owner_in(file_);
    // Some network file systems have no locks; there, only a folder without an owner is free.
    const bool unknown = !owner.host.empty() && (!locked || owner.host != host_name());
    if (lives || unknown) {
      ::close(file_);
      throw CheckpointError("[disk] {} is in use by {}. Wait for its end, or set {} to another folder.{}", dir,
                            owner.host.empty() ? "another job"
                                               : fmt::format("process {} on host {}, started at {}", owner.process,
                                                             owner.host, owner.start),
                            key, lives ? "" : fmt::format(" If it has ended, delete {}.", path_));
    }
    if (names(path_, file_)) break;
    ::close(file_);
  }
  const std::string owner = fmt::format("{} {} {}\n", host_name(), ::getpid(), utc_now());
  if (!rewrite(file_, owner)) {
    const int error = errno;
    ::close(file_);
    throw ResourceError("[disk] {} cannot be written: {}. Free space, or set {} to another folder.", path_,
                        std::strerror(error), key);
  }
}

FolderLock::~FolderLock() {
  ::unlink(path_.c_str());  // before the lock ends: a file that is opened later is a new one
  ::close(file_);
}

}  // namespace slipstream::runtime

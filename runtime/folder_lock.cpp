// SPDX-License-Identifier: Apache-2.0
// Locks DIR/lock and writes its owner into it: "HOST PROCESS START SIGHT JOB STARTS".

#include "runtime/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/base/check.h"
#include "engine/base/fail_point.h"

namespace slipstream::runtime {
namespace {

namespace fs = std::filesystem;

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
  std::string sight;   // equal: one process sees the other in /proc; "-" if it is unknown
  std::string job;     // of Slurm; "-" outside
  int64_t starts = 0;  // of the job, before this one
};

/// The value of a variable of the environment if it is one word, else `otherwise`.
std::string word_of(const char* variable, const std::string& otherwise) {
  const char* const value = std::getenv(variable);
  const std::string_view word = value == nullptr ? "" : value;
  return word.empty() || word.find_first_of(" \t\r\n") != std::string_view::npos ? otherwise : std::string(word);
}

LockOwner this_job() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot, processes;
  struct stat info {};
  if (file >> boot && ::stat("/proc/self/ns/pid", &info) == 0) processes = fmt::format("{}", info.st_ino);
  LockOwner owner{.host = host_name(),
                  .process = fmt::format("{}", ::getpid()),
                  .start = utc_now(),
                  .sight = processes.empty() ? "-" : boot + ":" + processes,
                  .job = word_of("SLURM_JOB_ID", "-")};
  if (owner.job != "-") owner.job = word_of("SLURM_CLUSTER_NAME", "slurm") + ":" + owner.job;
  const std::string starts = word_of("SLURM_RESTART_COUNT", "0");
  std::from_chars(starts.data(), starts.data() + starts.size(), owner.starts);
  return owner;
}

LockOwner owner_in(int file) {
  char text[1024] = {};
  LockOwner owner;
  if (::pread(file, text, sizeof text - 1, 0) > 0)
    std::istringstream(text) >> owner.host >> owner.process >> owner.start >> owner.sight >> owner.job >> owner.starts;
  return owner;
}

/// Is it certain that the owner, whose lock is not seen, has ended? `has_locks`: the file system would show one.
bool has_ended(const LockOwner& owner, const LockOwner& self, bool has_locks) {
  if (owner.host.empty()) return true;  // a file that no job has finished
  if (self.job != "-" && owner.job == self.job && owner.starts < self.starts) return true;
  if (owner.host != self.host) return false;
  if (has_locks) return true;
  return self.sight != "-" && owner.sight == self.sight && !fs::exists("/proc/" + owner.process);
}

/// Tries to take the lock of an open file. `supported` becomes false on file systems without locks, some network file
/// systems among them.
bool take(int file, bool& supported) {
  if (fails_at("lock.unsupported"))
    errno = ENOSYS;
  else if (::flock(file, LOCK_EX | LOCK_NB) == 0)
    return true;
  supported = errno == EWOULDBLOCK;
  return false;
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
  const LockOwner self = this_job();
  while (true) {
    file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file_ < 0)
      throw ResourceError("[disk] {} cannot be written: {}. Set {} to a writable folder.", path_, std::strerror(errno),
                          key);
    bool supported = true;
    const bool locked = take(file_, supported), lives = !locked && supported;
    const LockOwner owner = owner_in(file_);
    if (lives || !has_ended(owner, self, supported)) {
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
  const std::string owner =
      fmt::format("{} {} {} {} {} {}\n", self.host, self.process, self.start, self.sight, self.job, self.starts);
  if (!rewrite(file_, owner)) {
    const int error = errno;
    ::close(file_);
    throw ResourceError("[disk] {} cannot be written: {}. Free space, or set {} to another folder.", path_,
                        std::strerror(error), key);
  }
}

bool FolderLock::has_moved() const { return !names(path_, file_); }

FolderLock::~FolderLock() {
  // Before the lock ends: a file that is opened later is a new one.
  std::error_code error;
  if (const fs::path now = fs::read_symlink(fmt::format("/proc/self/fd/{}", file_), error); !error && names(now, file_))
    ::unlink(now.c_str());
  ::close(file_);
}

}  // namespace slipstream::runtime

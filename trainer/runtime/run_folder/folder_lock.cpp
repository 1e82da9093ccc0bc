// SPDX-License-Identifier: Apache-2.0
// Locks DIR/lock and writes its owner into it: "HOST PROCESS START SIGHT JOB STARTS BORN LEASE".

#include "trainer/runtime/run_folder/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "engine/base/check.h"
#include "engine/base/disk.h"
#include "engine/base/fail_point.h"
#include "engine/base/files.h"
#include "engine/base/log.h"
#include "engine/base/parallel.h"

namespace slipstream::runtime {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLeaseSeconds = 120;
constexpr std::chrono::seconds kRenewal{10};
constexpr std::chrono::seconds kTie{1};

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
  std::string sight;          // if equal, one process sees the other in /proc; "-" if it is unknown
  std::string job;            // the Slurm job; "-" outside of Slurm
  int64_t starts = 0;         // the starts of the job before this one
  int64_t born = 0;           // when the process started, in the kernel's ticks since its boot; 0: unknown
  int64_t lease_seconds = 0;  // 0: the job does not renew the file

  std::string line() const {
    return fmt::format("{} {} {} {} {} {} {} {}\n", host, process, start, sight, job, starts, born, lease_seconds);
  }
  std::string boot() const { return sight.substr(0, sight.find(':')); }
};

/// Returns the ticks at which a process of this host started; 0 if there is none.
int64_t born_of(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  std::string text;
  std::getline(file, text);
  // The name, in parentheses, may have spaces. The start is the 20th word after it.
  std::istringstream words(text.substr(std::min(text.rfind(')') + 1, text.size())));
  std::string word;
  for (int i = 0; i < 20; ++i) words >> word;
  int64_t born = 0;
  std::from_chars(word.data(), word.data() + word.size(), born);
  return born;
}

/// Returns the value of a variable of the environment if it is one word, else `otherwise`.
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
                  .job = word_of("SLURM_JOB_ID", "-"),
                  .born = born_of("self"),
                  .lease_seconds = kLeaseSeconds};
  if (owner.job != "-") owner.job = word_of("SLURM_CLUSTER_NAME", "slurm") + ":" + owner.job;
  const std::string starts = word_of("SLURM_RESTART_COUNT", "0");
  std::from_chars(starts.data(), starts.data() + starts.size(), owner.starts);
  return owner;
}

LockOwner owner_in(int file) {
  char text[1024] = {};
  LockOwner owner;
  if (::pread(file, text, sizeof text - 1, 0) > 0)
    std::istringstream(text) >> owner.host >> owner.process >> owner.start >> owner.sight >> owner.job >>
        owner.starts >> owner.born >> owner.lease_seconds;
  return owner;
}

/// Blocks. Returns the seconds since the file was last renewed, on the clock of its file system, which hosts share;
/// none if that is unknown.
std::optional<int64_t> age_of(int file, const std::string& path) {
  const std::string probe = fmt::format("{}.tmp-{}", path, ::getpid());
  const int fresh = ::open(probe.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fresh < 0) return {};
  struct stat now {
  }, then{};
  const bool known = ::fstat(fresh, &now) == 0 && ::fstat(file, &then) == 0;
  ::close(fresh);
  ::unlink(probe.c_str());
  if (!known) return {};
  return now.st_mtim.tv_sec - then.st_mtim.tv_sec;
}

/// Returns why it is certain that the owner, whose lock is not visible, has ended or has no claim; empty if it is not
/// certain. `has_locks`: the file system would show a lock.
std::string why_free(const LockOwner& owner, const LockOwner& self, bool has_locks,
                     std::optional<int64_t> age_seconds) {
  if (owner.host.empty()) return "no job has finished it";
  if (self.job != "-" && owner.job == self.job && owner.starts < self.starts) return "Slurm has started its job again";
  const bool same_boot = self.boot() != "-" && owner.boot() == self.boot();
  if ((same_boot || owner.host == self.host) && has_locks) return "its process has ended";
  // By now, the number may belong to a younger process.
  const int64_t born = same_boot && owner.sight == self.sight ? born_of(owner.process) : -1;
  if (born == 0 || (born > 0 && owner.born > 0 && born != owner.born)) return "its process has ended";
  if (owner.lease_seconds > 0 && age_seconds && *age_seconds > owner.lease_seconds)
    return fmt::format("it has not renewed its claim for {} s, more than the {} s of its lease", *age_seconds,
                       owner.lease_seconds);
  return {};
}

/// Tries to take the lock of an open file. `supported` becomes false on file systems without locks, which include some
/// network file systems.
bool take(int file, bool& supported) {
  if (fails_at("lock.unsupported"))
    errno = ENOSYS;
  else if (::flock(file, LOCK_EX | LOCK_NB) == 0)
    return true;
  supported = errno == EWOULDBLOCK;
  return false;
}

/// Returns true if the path still names this open file. Its former owner deletes the file at its end.
bool names(const std::string& path, int file) {
  struct stat named {
  }, opened{};
  return ::stat(path.c_str(), &named) == 0 && ::fstat(file, &opened) == 0 && named.st_ino == opened.st_ino;
}

/// Replaces the contents of the file. A write may take only a part of the bytes.
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
  LockOwner self = this_job();
  LockOwner owner;
  std::string why;
  bool supported = true;
  while (true) {
    file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file_ < 0)
      files::disk_failed(files::shown(path_), "written", errno, fmt::format("set {} to another folder", key));
    supported = true;
    const bool locked = take(file_, supported), lives = !locked && supported;
    owner = owner_in(file_);
    const std::optional<int64_t> age = owner.lease_seconds > 0 ? age_of(file_, path_) : std::nullopt;
    why = lives ? "" : why_free(owner, self, supported, age);
    if (why.empty()) {
      ::close(file_);
      std::string what_to_do;
      if (!lives && age)
        what_to_do = fmt::format(
            " It last renewed its claim {} s ago. If it has ended, delete {}, or start again {} s after that.", *age,
            path_, owner.lease_seconds);
      else if (!lives)
        what_to_do = fmt::format(" If it has ended, delete {}.", path_);
      throw CheckpointError("[disk] {} is in use by {}. Wait for its end, or set {} to another folder.{}", dir,
                            owner.host.empty() ? "another job"
                                               : fmt::format("process {} on host {}, started at {}", owner.process,
                                                             owner.host, owner.start),
                            key, what_to_do);
    }
    if (names(path_, file_)) break;
    ::close(file_);
  }
  owner_ = self.line();
  bool written = rewrite(file_, owner_);
  if (written && !supported && !owner.host.empty()) {
    // Another start may have found the same owner gone. The later one of the two gets the folder.
    std::this_thread::sleep_for(kTie);
    if (!owns()) {
      ::close(file_);
      throw CheckpointError(
          "[disk] {} is in use by another job, which started at the same time. Wait for its end, or "
          "set {} to another folder.",
          dir, key);
    }
  }
  try {
    if (written) renews_ = start_thread("the renewal of a lock", [this] { renew(); });
  } catch (const ResourceError&) {  // a claim without a lease: other hosts never take it over
    self.lease_seconds = 0;
    owner_ = self.line();
    written = rewrite(file_, owner_);
  }
  if (!written) {
    const int error = errno;
    ::close(file_);
    files::disk_failed(files::shown(path_), "written", error, fmt::format("set {} to another folder", key));
  }
  if (!owner.host.empty())
    log_info("note: {} was in use by process {} on host {}, started at {}. This run takes it over: {}.", dir,
             owner.process, owner.host, owner.start, why);
}

void FolderLock::renew() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kRenewal, [this] { return ends_; })) {
    // The file may belong to another job, which took it over while this process was stopped.
    if (owns()) ::futimens(file_, nullptr);
  }
}

bool FolderLock::owns() const {
  std::string now(owner_.size() + 1, '\0');
  return ::pread(file_, now.data(), now.size(), 0) == std::ssize(owner_) && now.starts_with(owner_);
}

bool FolderLock::has_moved() const { return !names(path_, file_); }

bool FolderLock::is_lost() const {
  std::error_code error;
  std::ifstream now(path_);
  std::string line;
  // A file that is deleted, or that cannot be read now, names no other job.
  return fs::exists(path_, error) && std::getline(now, line) && line + "\n" != owner_;
}

FolderLock::~FolderLock() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (renews_.joinable()) renews_.join();
  // This comes before the end of the lock: a file that is opened later is a new one.
  std::error_code error;
  if (const fs::path now = fs::read_symlink(fmt::format("/proc/self/fd/{}", file_), error);
      !error && names(now, file_) && owns())
    ::unlink(now.c_str());
  ::close(file_);
}

}  // namespace slipstream::runtime

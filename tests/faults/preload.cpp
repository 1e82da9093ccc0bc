// SPDX-License-Identifier: Apache-2.0
// A library for LD_PRELOAD whose disk and clock fail on request.
//
//   SLIPSTREAM_DISK="CALL:FAULT:SHARE .."  CALL is open, read, write, sync, rename, mkdir or direct: reads and writes
//                                          with O_DIRECT. FAULT is EIO, EINVAL, ENOSPC, EDQUOT, EACCES, EROFS,
//                                          short: a part of the bytes, or stuck: the call does not return.
//                                          SHARE of the calls fails, 0 to 1.
//   SLIPSTREAM_DISK_PATH=TEXT              only files whose path has TEXT
//   SLIPSTREAM_DISK_RANK=N                 only this rank of Open MPI
//   SLIPSTREAM_DISK_LOG=FILE               gets a line for every fault
//   SLIPSTREAM_DISK_SEED=N
//   SLIPSTREAM_CLOCK="SECONDS@AFTER .."    from AFTER seconds on, the clock of the day is SECONDS ahead
//   SLIPSTREAM_CLOCK_RANK=N                only on this rank

// open and open64 are two symbols, both of which are needed.
#undef _FILE_OFFSET_BITS

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

#define REAL(name)                                                                              \
  (*[] {                                                                                        \
    static auto* const function = reinterpret_cast<decltype(::name)*>(dlsym(RTLD_NEXT, #name)); \
    return function;                                                                            \
  }())

const char* setting(const char* name) {
  const char* text = getenv(name);
  return text ? text : "";
}

bool is_this_rank(const char* name) {
  const char* const wanted = setting(name);
  return *wanted == '\0' || strcmp(wanted, setting("OMPI_COMM_WORLD_RANK")) == 0;
}

/// The splitmix64 of the seed, the process and the number of the call.
double random_share() {
  static std::atomic<uint64_t> calls{0};
  uint64_t x = strtoull(setting("SLIPSTREAM_DISK_SEED"), nullptr, 10) + 0x9e3779b97f4a7c15 * (1 + calls++) +
               0x100000001b3 * strtoull(setting("OMPI_COMM_WORLD_RANK"), nullptr, 10);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

constexpr int kShort = -1;

/// The fault of a call on a file: an error number, kShort, or 0.
int fault_of(const char* call, const char* path) {
  const char* rules = setting("SLIPSTREAM_DISK");
  if (*rules == '\0' || !is_this_rank("SLIPSTREAM_DISK_RANK") ||
      strstr(path, setting("SLIPSTREAM_DISK_PATH")) == nullptr)
    return 0;
  char name[16], fault[16];
  double share = 0;
  int used = 0;
  for (; sscanf(rules, " %15[^:]:%15[^:]:%lf%n", name, fault, &share, &used) == 3; rules += used) {
    if (strcmp(name, call) != 0 || random_share() >= share) continue;
    if (const char* log = setting("SLIPSTREAM_DISK_LOG"); *log) {
      const int file = REAL(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
      char line[PATH_MAX + 64];
      const int size = snprintf(line, sizeof line, "%s %s %s\n", call, fault, path);
      if (file >= 0 && REAL(write)(file, line, static_cast<size_t>(size)) < 0) perror(log);
      if (file >= 0) close(file);
    }
    while (strcmp(fault, "stuck") == 0) pause();
    return strcmp(fault, "short") == 0    ? kShort
           : strcmp(fault, "EACCES") == 0 ? EACCES
           : strcmp(fault, "EROFS") == 0  ? EROFS
           : strcmp(fault, "ENOSPC") == 0 ? ENOSPC
           : strcmp(fault, "EDQUOT") == 0 ? EDQUOT
           : strcmp(fault, "EINVAL") == 0 ? EINVAL
                                          : EIO;
  }
  return 0;
}

int fault_of(const char* call, int file) {
  struct stat info {};
  if (*setting("SLIPSTREAM_DISK") == '\0') return 0;
  if (fstat(file, &info) != 0 || !(S_ISREG(info.st_mode) || S_ISDIR(info.st_mode))) return 0;
  char link[64], path[PATH_MAX] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  return readlink(link, path, sizeof path - 1) < 0 ? 0 : fault_of(call, path);
}

int fails(int error) {
  errno = error;
  return -1;
}

template <class Move>
ssize_t moved(const char* call, int file, size_t size_bytes, const Move& move) {
  int fault = fault_of(call, file);
  if (fault == 0 && (fcntl(file, F_GETFL) & O_DIRECT) != 0) fault = fault_of("direct", file);
  if (fault > 0) return fails(fault);
  return move(fault == kShort && size_bytes > 1 ? 1 + (size_bytes - 1) / 2 : size_bytes);
}

int64_t monotonic_ns() {
  timespec now{};
  REAL(clock_gettime)(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}
const int64_t g_began_ns = monotonic_ns();

time_t shift_seconds() {
  const char* jumps = setting("SLIPSTREAM_CLOCK");
  if (*jumps == '\0' || !is_this_rank("SLIPSTREAM_CLOCK_RANK")) return 0;
  long long seconds = 0, now = 0;
  double after = 0;
  int used = 0;
  for (; sscanf(jumps, " %lld@%lf%n", &seconds, &after, &used) == 2; jumps += used)
    if (static_cast<double>(monotonic_ns() - g_began_ns) * 1e-9 >= after) now = seconds;
  return static_cast<time_t>(now);
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  const int fault = fault_of("open", path);
  return fault > 0 ? fails(fault) : REAL(open)(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open(path, flags, mode);
}

ssize_t write(int file, const void* from, size_t size_bytes) {
  return moved("write", file, size_bytes, [&](size_t n) { return REAL(write)(file, from, n); });
}
ssize_t pwrite(int file, const void* from, size_t size_bytes, off_t at) {
  return moved("write", file, size_bytes, [&](size_t n) { return REAL(pwrite)(file, from, n, at); });
}
ssize_t pwrite64(int file, const void* from, size_t size_bytes, off64_t at) {
  return pwrite(file, from, size_bytes, at);
}
ssize_t pread(int file, void* to, size_t size_bytes, off_t at) {
  return moved("read", file, size_bytes, [&](size_t n) { return REAL(pread)(file, to, n, at); });
}
ssize_t pread64(int file, void* to, size_t size_bytes, off64_t at) { return pread(file, to, size_bytes, at); }

int fsync(int file) {
  const int fault = fault_of("sync", file);
  return fault > 0 ? fails(fault) : REAL(fsync)(file);
}
int fdatasync(int file) {
  const int fault = fault_of("sync", file);
  return fault > 0 ? fails(fault) : REAL(fdatasync)(file);
}

int rename(const char* from, const char* to) noexcept {
  const int fault = fault_of("rename", to);
  return fault > 0 ? fails(fault) : REAL(rename)(from, to);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  const int fault = fault_of("rename", to);
  return fault > 0 ? fails(fault) : REAL(renameat2)(from_folder, from, to_folder, to, flags);
}
int mkdir(const char* path, mode_t mode) noexcept {
  const int fault = fault_of("mkdir", path);
  return fault > 0 ? fails(fault) : REAL(mkdir)(path, mode);
}

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const int result = REAL(clock_gettime)(clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += shift_seconds();
  return result;
}
int gettimeofday(timeval* now, void* zone) noexcept {
  const int result = REAL(gettimeofday)(now, zone);
  now->tv_sec += shift_seconds();
  return result;
}
time_t time(time_t* out) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}

}  // extern "C"

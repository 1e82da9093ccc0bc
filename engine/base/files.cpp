// SPDX-License-Identifier: Apache-2.0
// File access through POSIX calls. pread replaces mmap, because truncating a mapped file kills the process.

#include "engine/base/files.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "engine/base/check.h"
#include "engine/base/disk.h"
#include "engine/base/folder.h"
#include "engine/base/units.h"
#include "engine/base/utf8.h"

namespace slipstream::files {

namespace {

constexpr int64_t kTransferBytesMax = 1 << 30;  // one read or write call moves at most about 2 GiB on Linux

std::string reason(int error) { return std::strerror(error); }

}  // namespace

void refuse(Owner owner, const std::string& sentence) {
  if (owner == Owner::checkpoint) throw CheckpointError("[checkpoint] {}", sentence);
  throw DataError("[data] {}", sentence);
}

namespace {

/// Appends as much of `text` in printable form as fits into `limit_bytes` without splitting a character. Returns the
/// number of bytes that it took from `text`.
size_t append_printable(std::string& out, std::string_view text, size_t limit_bytes) {
  size_t at = 0;
  while (at < text.size() && at < limit_bytes) {
    const CodePoint point = next_code_point(text, at);
    if (point.size_bytes == 0 || point.value < 0x20 || point.value == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<uint8_t>(text[at]));
      ++at;
    } else {
      out += text.substr(at, static_cast<size_t>(point.size_bytes));
      at += static_cast<size_t>(point.size_bytes);
    }
  }
  return at;
}

}  // namespace

std::string shown(std::string_view text) {
  const std::string real = real_name(text);
  text = real;
  std::string out = "\"";
  const size_t bytes = append_printable(out, text, 255);
  out += '"';
  if (bytes < text.size()) out += fmt::format("... ({} bytes)", text.size());
  return out;
}

std::string printable(std::string_view text, size_t limit_bytes) {
  std::string out;
  if (append_printable(out, text, limit_bytes) < text.size()) out += "..";
  return out;
}

namespace {

/// Blocks. Opens a file as open(2) does. Checkpoints of many ranks and weights in many shards have more files than
/// 1024, the soft limit of most systems. The soft limit is then raised to the hard one.
int open_to_read(const std::string& path) {
  // O_NONBLOCK: opening a pipe without a writer must not hang.
  const auto open_it = [&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); };
  const int descriptor = open_it();
  if (descriptor >= 0 || errno != EMFILE) return descriptor;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) return open_it();
  }
  errno = EMFILE;
  return descriptor;
}

}  // namespace

InputFile::InputFile(const std::string& path, Owner owner)
    : path_(path), owner_(owner), descriptor_(open_to_read(path)) {
  if (descriptor_ < 0) {
    const int error = errno;
    if (error == EMFILE)
      throw ResourceError("{} cannot be read: this process has as many open files as it may. Raise the hard limit.",
                          shown(path));
    if (error == ENOENT || error == ENOTDIR)
      refuse(owner, fmt::format("{} does not exist. Check the path, or create the file first.", shown(path)));
    refuse(owner, fmt::format("{} cannot be read: {}. {}", shown(path), reason(error),
                              error == EACCES || error == EPERM ? "This user may not read it: change its permissions."
                                                                : disk_remedy(error, "restore the file from a copy")));
  }
  struct stat info {};
  const bool known = ::fstat(descriptor_, &info) == 0;
  if (!known || !S_ISREG(info.st_mode)) {
    const bool folder = known && S_ISDIR(info.st_mode);
    ::close(descriptor_);
    refuse(owner, fmt::format("{} is {}, need a regular file. Give the path of the file itself.", shown(path),
                              folder ? "a folder" : "a pipe or a device"));
  }
  size_bytes_ = info.st_size;
}

namespace {

std::string temporary_folder() {
  const char* const set = std::getenv("TMPDIR");
  return set != nullptr && *set != '\0' ? set : "/tmp";
}

/// Blocks. Returns the descriptor of a file without a name, or -1 with errno set.
int open_nameless(const std::string& folder) {
  std::string name = folder + "/slipstream-XXXXXX";
  const int descriptor = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor >= 0) ::unlink(name.c_str());
  return descriptor;
}

}  // namespace

// Delegates to another constructor, so that the destructor closes the file if `next` throws.
InputFile::InputFile(const std::string& path, Owner owner, const ReadBytes& next)
    : InputFile(path, owner, open_nameless(temporary_folder())) {
  const auto fail = [&](int error) {
    throw ResourceError(
        "[disk] {} cannot be copied to {} after byte {}: {}. Set TMPDIR to a folder with more space, or encode the "
        "text "
        "once with slipstream tokenize.",
        shown(path), shown(temporary_folder()), size_bytes_, reason(error));
  };
  if (descriptor_ < 0) fail(errno);
  std::string bytes(static_cast<size_t>(kMiB), '\0');
  for (int64_t got = 0; (got = next(bytes.data(), std::ssize(bytes))) > 0; size_bytes_ += got)
    for (int64_t done = 0; done < got;) {
      const ssize_t put = ::write(descriptor_, bytes.data() + done, static_cast<size_t>(got - done));
      if (put < 0 && errno != EINTR) fail(errno);
      done += std::max<int64_t>(0, put);
    }
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      owner_(other.owner_),
      descriptor_(other.descriptor_),
      size_bytes_(other.size_bytes_) {
  other.descriptor_ = -1;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void InputFile::read(int64_t offset_bytes, void* out, int64_t size_bytes) const {
  char* to = static_cast<char*>(out);
  int64_t done_bytes = 0;
  while (done_bytes < size_bytes) {
    const auto want = static_cast<size_t>(std::min(size_bytes - done_bytes, kTransferBytesMax));
    const ssize_t got = ::pread(descriptor_, to + done_bytes, want, offset_bytes + done_bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      refuse(owner_, fmt::format("{} cannot be read at byte {}: {}. {}", shown(path_), offset_bytes + done_bytes,
                                 reason(errno), disk_remedy(errno, "restore the file from a copy")));
    if (got == 0)
      refuse(owner_, fmt::format("{} ends at byte {}, need {} bytes from byte {} on (it had {} bytes when it was "
                                 "opened). It was truncated while in use. Restore it and start again.",
                                 shown(path_), offset_bytes + done_bytes, size_bytes, offset_bytes, size_bytes_));
    done_bytes += got;
  }
}

void InputFile::prefetch(int64_t offset_bytes, int64_t size_bytes) const {
  // A length of zero would mean all bytes up to the end of the file.
  if (size_bytes > 0) ::posix_fadvise(descriptor_, offset_bytes, size_bytes, POSIX_FADV_WILLNEED);
}

std::string read_file(const std::string& path, Owner owner, int64_t limit_bytes) {
  const InputFile file(path, owner);
  if (file.size_bytes() > limit_bytes)
    refuse(owner, fmt::format("{} has {}, need at most {}. This program did not write it.", shown(path),
                              format_bytes(file.size_bytes()), format_bytes(limit_bytes)));
  std::string bytes(static_cast<size_t>(file.size_bytes()), '\0');
  file.read(0, bytes.data(), file.size_bytes());
  return bytes;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

OutputFile::OutputFile(const std::string& path) : path_(path), temporary_(fmt::format("{}.tmp-{}", path, ::getpid())) {
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) disk_failed(shown(path), "written", errno);
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void OutputFile::write(const void* bytes, int64_t size_bytes) {
  SLIP_ASSERT(descriptor_ >= 0);
  const char* from = static_cast<const char*>(bytes);
  int64_t done_bytes = 0;
  while (done_bytes < size_bytes) {
    const auto want = static_cast<size_t>(std::min(size_bytes - done_bytes, kTransferBytesMax));
    const ssize_t put = ::write(descriptor_, from + done_bytes, want);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) disk_failed(shown(path_), "written", errno);
    done_bytes += put;
  }
}

void OutputFile::commit() {
  SLIP_ASSERT(descriptor_ >= 0);
  // On failure the destructor still removes the temporary file.
  const DiskWait wait(shown(path_));
  if (::fsync(descriptor_) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0)
    disk_failed(shown(path_), "finished", errno);
  ::close(descriptor_);
  descriptor_ = -1;
  sync_folder(folder_of(path_));
}

void write_file(const std::string& path, std::string_view bytes) {
  OutputFile file(path);
  file.write(bytes.data(), static_cast<int64_t>(bytes.size()));
  file.commit();
}

void sync_folder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) disk_failed(shown(folder), "opened", errno);
  const DiskWait wait(shown(folder));
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  // Some network file systems cannot sync a folder and return EINVAL. The rename itself is still atomic there.
  if (result != 0 && error != EINVAL && error != EROFS) disk_failed(shown(folder), "written to disk", error);
}

}  // namespace slipstream::files

// SPDX-License-Identifier: Apache-2.0
// Passes aligned buffers between a caller and the threads that wait for the disk.

#include "engine/checkpoint/direct_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/disk.h"
#include "engine/base/files.h"
#include "engine/base/parallel.h"
#include "engine/base/units.h"

namespace slipstream::checkpoint {
namespace {

// The buffers are small, because they exist beside the memory of a training run.
constexpr int64_t kBufferBytes = kMiB;
// Chunks of 1 MiB take three times as long to read.
constexpr int64_t kChunkBytes = 4 * kMiB;
constexpr int64_t kBlockBytes = 4096;  // a multiple of the alignment that common file systems ask for
constexpr int kReaders = 2, kChunks = 4;

struct Unmap {
  size_t size_bytes = 0;
  void operator()(std::byte* bytes) const { ::munmap(bytes, size_bytes); }
};
using Aligned = std::unique_ptr<std::byte, Unmap>;

/// Memory of a buffer. It is mapped, because malloc keeps large blocks once one has been freed. With pages of 4 KiB, a
/// disk that takes few segments per request would get 1 MiB at a time, and the kernel would look up every page.
Aligned aligned(int64_t size_bytes) {
  const auto size = static_cast<size_t>(size_bytes);
  void* const bytes = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (const int error = errno; bytes == MAP_FAILED)
    throw ResourceError(
        "[memory] a checkpoint needs {} for a buffer, but this process gets none: {}. Free memory on this host, or "
        "raise "
        "the limit of this process's memory (ulimit -v).",
        format_bytes(size_bytes), std::strerror(error));
  if (size_bytes > kBufferBytes) ::madvise(bytes, size, MADV_HUGEPAGE);
  return Aligned(static_cast<std::byte*>(bytes), Unmap{size});
}

bool is_block(int64_t bytes) { return bytes % kBlockBytes == 0; }

/// Switches all threads to ordinary accesses.
void leave_direct(int descriptor, std::atomic<bool>& direct) {
  ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) & ~O_DIRECT);
  direct = false;
}

/// Starts up to `count` threads, or fewer if the system has no more.
void start_some(std::vector<std::thread>& threads, int count, const std::function<void()>& body) {
  try {
    for (int i = 0; i < count; ++i) threads.push_back(start_thread("moves a checkpoint", body));
  } catch (const ResourceError&) {
    return;
  }
}

}  // namespace

struct DirectWriter::State {
  struct Buffer {
    Aligned bytes = aligned(kBufferBytes);
    int64_t at = 0, filled = 0;
  };

  std::string path, temporary;
  int64_t size_bytes = 0, end_bytes = 0;  // the size of the file, and the bytes that the buffers have received
  int descriptor = -1;
  std::atomic<bool> direct = true;
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Buffer> full, free;
  Buffer current = {};
  std::exception_ptr error;
  bool ends = false;

  [[noreturn]] void disk_failed(const char* what) const {
    const int error_number = errno;
    files::disk_failed(files::shown(path), what, error_number);
  }

  void put(const Buffer& buffer) {
    for (int64_t done = 0; done < buffer.filled;) {
      int64_t take = buffer.filled - done;
      if (direct && take >= kBlockBytes && is_block(done)) take -= take % kBlockBytes;
      // Only the last bytes of the file do not fill whole blocks.
      if (direct && !(is_block(take) && is_block(done))) leave_direct(descriptor, direct);
      const bool was_direct = direct;
      const ssize_t wrote =
          ::pwrite(descriptor, buffer.bytes.get() + done, static_cast<size_t>(take), buffer.at + done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0 && errno == EINVAL && was_direct) {
        leave_direct(descriptor, direct);
        continue;
      }
      if (wrote == 0) errno = EIO;
      if (wrote <= 0) disk_failed("written");
      done += wrote;
    }
  }

  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return ends || !full.empty(); });
      if (full.empty()) return;
      Buffer buffer = std::move(full.front());
      full.pop_front();
      const bool skips = error != nullptr;
      lock.unlock();
      std::exception_ptr failure;
      try {
        if (!skips) put(buffer);
      } catch (const Error&) {
        failure = std::current_exception();
      }
      lock.lock();
      if (failure && !error) error = failure;
      free.push_back(std::move(buffer));
      changed.notify_all();
    }
  }

  /// Hands the full buffer to the writers and makes `current` an empty one.
  void hand_over() {
    current.at = end_bytes - current.filled;
    if (threads.empty()) {
      put(current);
    } else {
      std::unique_lock lock(mutex);
      full.push_back(std::move(current));
      changed.notify_all();
      changed.wait(lock, [this] { return !free.empty(); });
      current = std::move(free.front());
      free.pop_front();
      if (error) std::rethrow_exception(error);
    }
    current.filled = 0;
  }

  void end_threads() {
    {
      const std::lock_guard lock(mutex);
      ends = true;
    }
    changed.notify_all();
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }
};

DirectWriter::DirectWriter(const std::string& path, int64_t size_bytes, int threads)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.path = path;
  s.temporary = fmt::format("{}.tmp-{}", path, ::getpid());
  s.size_bytes = size_bytes;
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  s.descriptor = ::open(s.temporary.c_str(), kFlags | O_DIRECT, 0666);
  if (s.descriptor < 0 && errno == EINVAL) {
    s.direct = false;
    s.descriptor = ::open(s.temporary.c_str(), kFlags, 0666);
  }
  if (s.descriptor < 0) s.disk_failed("written");
  // With its space reserved, several threads can write to the file at once, because a write that extends a file
  // excludes the others. A file system without this call reports a full disk later.
  if (size_bytes > 0 && ::fallocate(s.descriptor, 0, 0, size_bytes) != 0 && (errno == ENOSPC || errno == EDQUOT))
    s.disk_failed("written");
  if (size_bytes <= kBufferBytes) return;
  start_some(s.threads, threads, [&s] { s.serve(); });
  s.free.resize(s.threads.size());
}

DirectWriter::~DirectWriter() {
  State& s = *state_;
  s.end_threads();
  if (s.descriptor < 0) return;
  ::close(s.descriptor);
  ::unlink(s.temporary.c_str());
}

void DirectWriter::write(const void* bytes, int64_t size_bytes) {
  State& s = *state_;
  SLIP_ASSERT(s.descriptor >= 0 && s.end_bytes + size_bytes <= s.size_bytes);
  const auto* from = static_cast<const std::byte*>(bytes);
  while (size_bytes > 0) {
    const int64_t take = std::min(size_bytes, kBufferBytes - s.current.filled);
    std::memcpy(s.current.bytes.get() + s.current.filled, from, static_cast<size_t>(take));
    s.current.filled += take;
    s.end_bytes += take;
    from += take;
    size_bytes -= take;
    if (s.current.filled == kBufferBytes) s.hand_over();
  }
}

void DirectWriter::commit() {
  State& s = *state_;
  SLIP_ASSERT(s.descriptor >= 0 && s.end_bytes == s.size_bytes);
  s.hand_over();
  s.end_threads();
  if (s.error) std::rethrow_exception(s.error);
  // On failure the destructor still removes the temporary file.
  const files::DiskWait wait(files::shown(s.path));
  if (::fsync(s.descriptor) != 0 || ::rename(s.temporary.c_str(), s.path.c_str()) != 0) s.disk_failed("finished");
  ::close(s.descriptor);
  s.descriptor = -1;
  files::sync_folder(files::folder_of(s.path));
}

namespace {

/// Chunk i of a file is in buffer i % kChunks. A reader fills the buffer and the caller empties it.
class ReadAhead {
 public:
  explicit ReadAhead(const std::string& path) : file_(path, files::Owner::checkpoint), size_bytes_(file_.size_bytes()) {
    for (int i = 0; i < kChunks && (i == 0 || i * kChunkBytes < size_bytes_); ++i)
      chunks_.push_back(aligned(kChunkBytes));
    ready_.resize(chunks_.size(), -1);
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
    direct_ = descriptor_ >= 0;
    if (size_bytes_ > kChunkBytes) start_some(threads_, kReaders, [this] { serve(); });
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;
  ~ReadAhead() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  void pass_to(const std::function<void(std::span<const std::byte>)>& take) {
    for (int64_t chunk = 0; chunk < count(); ++chunk) {
      const size_t buffer = static_cast<size_t>(chunk) % chunks_.size();
      if (threads_.empty()) {
        read(chunk);
      } else {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return error_ || ready_[buffer] == chunk; });
        if (ready_[buffer] != chunk) std::rethrow_exception(error_);
      }
      take({chunks_[buffer].get(), static_cast<size_t>(bytes_of(chunk))});
      const std::lock_guard lock(mutex_);
      taken_ = chunk + 1;
      changed_.notify_all();
    }
  }

 private:
  int64_t count() const { return ceil_div(size_bytes_, kChunkBytes); }
  int64_t bytes_of(int64_t chunk) const { return std::min(kChunkBytes, size_bytes_ - chunk * kChunkBytes); }

  void read(int64_t chunk) {
    std::byte* const to = chunks_[static_cast<size_t>(chunk) % chunks_.size()].get();
    const int64_t begin = chunk * kChunkBytes, need = bytes_of(chunk);
    int64_t done = 0;
    while (direct_ && done < need) {
      const ssize_t got = ::pread(descriptor_, to + done, static_cast<size_t>(kChunkBytes - done), begin + done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno != EINVAL)
        files::refuse(files::Owner::checkpoint,
                      fmt::format("{} cannot be read at byte {}: {}. {}", files::shown(file_.path()), begin + done,
                                  std::strerror(errno), files::disk_remedy(errno, "use another checkpoint")));
      if (got < kBlockBytes && done + got < need) break;  // refused, not a whole block, or the file has become shorter
      done += done + got < need ? got - got % kBlockBytes : got;
    }
    if (done < need) file_.read(begin + done, to + done, need - done);
  }

  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock,
                    [this] { return ends_ || error_ || next_ >= count() || next_ < taken_ + std::ssize(chunks_); });
      if (ends_ || error_ || next_ >= count()) return;
      const int64_t chunk = next_++;
      lock.unlock();
      std::exception_ptr failure;
      try {
        read(chunk);
      } catch (const Error&) {
        failure = std::current_exception();
      }
      lock.lock();
      if (failure && !error_) error_ = failure;
      if (!failure) ready_[static_cast<size_t>(chunk) % chunks_.size()] = chunk;
      changed_.notify_all();
    }
  }

  files::InputFile file_;
  const int64_t size_bytes_;
  int descriptor_ = -1;
  bool direct_ = false;
  std::vector<Aligned> chunks_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int64_t> ready_;    // the chunk in each buffer; -1: none
  int64_t next_ = 0, taken_ = 0;  // the chunks that readers have begun, and those that the caller has used
  std::exception_ptr error_;
  bool ends_ = false;
};

}  // namespace

void read_through(const std::string& path, const std::function<void(std::span<const std::byte>)>& take) {
  ReadAhead(path).pass_to(take);
}

}  // namespace slipstream::checkpoint

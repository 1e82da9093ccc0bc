// SPDX-License-Identifier: Apache-2.0
// Each ring has one writer and one reader. Positions count bytes since the start. They are published with release, so
// that a reader that sees a position also sees the bytes before it.

#include "comm/host/shared_transport.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <filesystem>
#include <new>
#include <string>
#include <vector>

#include "comm/host/stream_transport.h"
#include "engine/base/check.h"
#include "engine/base/units.h"

namespace slipstream::comm {
namespace {

// The size of all rings into a rank together. It is enough for two chunks of a pipelined collective between two ranks,
// and little for many ranks.
constexpr int64_t kAreaBytes = int64_t{1} << 20;
constexpr int64_t kLargestRingBytes = 2 * kChunkBytes;
constexpr int64_t kSmallestRingBytes = int64_t{16} << 10;

struct alignas(64) Bell {
  std::atomic<uint32_t> rung{0};
  std::atomic<uint32_t> asleep{0};

  /// Called once per sweep over the rings, after the positions are published.
  void ring() {
    rung.fetch_add(1, std::memory_order_seq_cst);
    if (asleep.load(std::memory_order_seq_cst) != 0)
      syscall(SYS_futex, &rung, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  void sleep(uint32_t seen, int64_t at_most_ns) {
    asleep.store(1, std::memory_order_seq_cst);
    const timespec limit{0, static_cast<long>(at_most_ns)};
    // The kernel compares again, so a ring that came meanwhile keeps this rank awake.
    syscall(SYS_futex, &rung, FUTEX_WAIT, seen, &limit, nullptr, 0);
    asleep.store(0, std::memory_order_seq_cst);
  }
};

struct Ring {
  alignas(64) std::atomic<uint64_t> written{0};
  std::atomic<uint32_t> full{0};  // the writer waits for room
  alignas(64) std::atomic<uint64_t> taken{0};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

constexpr int64_t kAlign = 16;  // the size of a header, so that headers never wrap around the end of a ring

int64_t ring_bytes(int size) {
  return std::clamp(kAreaBytes / std::max(1, size - 1), kSmallestRingBytes, kLargestRingBytes) / kAlign * kAlign;
}
int64_t ring_stride(int size) { return static_cast<int64_t>(sizeof(Ring)) + round_up(ring_bytes(size), 64); }

/// One end of a ring. It moves as many bytes as are available.
class End {
 public:
  End(std::byte* area, int sender, int size)
      : ring_(std::launder(reinterpret_cast<Ring*>(area + sizeof(Bell) + sender * ring_stride(size)))),
        data_(reinterpret_cast<std::byte*>(ring_) + sizeof(Ring)),
        capacity_(ring_bytes(size)) {}

  // The writer's side.
  int64_t room() const {
    return capacity_ - static_cast<int64_t>(here_ - ring_->taken.load(std::memory_order_seq_cst));
  }
  void put(const void* from, int64_t size_bytes) {
    in_two(size_bytes, [&](int64_t at, int64_t begin, int64_t count) {
      std::memcpy(data_ + at, static_cast<const std::byte*>(from) + begin, static_cast<size_t>(count));
    });
  }
  void publish() { ring_->written.store(here_, std::memory_order_release); }
  /// Asks the reader to ring when it has made room. Room may have come meanwhile.
  void ask_for_room() { ring_->full.store(1, std::memory_order_seq_cst); }

  // The reader's side.
  int64_t waiting() const { return static_cast<int64_t>(ring_->written.load(std::memory_order_acquire) - here_); }
  void take(void* to, int64_t size_bytes) {
    in_two(size_bytes, [&](int64_t at, int64_t begin, int64_t count) {
      std::memcpy(static_cast<std::byte*>(to) + begin, data_ + at, static_cast<size_t>(count));
    });
  }
  void skip(int64_t size_bytes) { here_ += static_cast<uint64_t>(size_bytes); }
  /// Gives the room back. Returns true if the writer waits for it.
  bool release() {
    if (ring_->taken.load(std::memory_order_relaxed) == here_) return false;
    ring_->taken.store(here_, std::memory_order_seq_cst);
    return ring_->full.load(std::memory_order_seq_cst) != 0 && ring_->full.exchange(0, std::memory_order_seq_cst) != 0;
  }

 private:
  /// Copies up to the end of the ring, then from its beginning.
  template <typename Copy>
  void in_two(int64_t size_bytes, const Copy& copy) {
    const int64_t at = static_cast<int64_t>(here_ % static_cast<uint64_t>(capacity_));
    const int64_t first = std::min(size_bytes, capacity_ - at);
    copy(at, int64_t{0}, first);
    if (first < size_bytes) copy(int64_t{0}, first, size_bytes - first);
    here_ += static_cast<uint64_t>(size_bytes);
  }

  Ring* ring_;
  std::byte* data_;
  int64_t capacity_;
  uint64_t here_ = 0;  // the position of this end, ahead of the published one
};

class SharedTransport final : public StreamTransport {
 public:
  SharedTransport(std::vector<std::byte*> areas, int rank, std::vector<int> names, std::shared_ptr<void> owner)
      : StreamTransport(rank, std::move(names)), owner_(std::move(owner)) {
    static_assert(kAlign == kHeaderBytes);
    for (int r = 0; r < size(); ++r) {
      bells_.push_back(std::launder(reinterpret_cast<Bell*>(areas[static_cast<size_t>(r)])));
      out_.emplace_back(areas[static_cast<size_t>(r)], rank, size());
      in_.emplace_back(areas[static_cast<size_t>(rank)], r, size());
    }
  }

  void wait(int64_t at_most_ns) override {
    for (int peer = 0; peer < size(); ++peer) {
      if (!sends_to(peer)) continue;
      out_[static_cast<size_t>(peer)].ask_for_room();
      if (out_[static_cast<size_t>(peer)].room() > 0) return;
    }
    if (!is_aborted()) bells_[static_cast<size_t>(rank())]->sleep(seen_, at_most_ns);
  }
  void abort() override {
    StreamTransport::abort();
    bells_[static_cast<size_t>(rank())]->ring();
  }

 private:
  int64_t write(int peer, const std::byte* from, int64_t size_bytes, bool) override {
    End& end = out_[static_cast<size_t>(peer)];
    const int64_t count = std::clamp<int64_t>(end.room(), 0, size_bytes);  // padding may have left less than nothing
    if (count > 0) end.put(from, count);
    return count;
  }
  int64_t read(int peer, std::byte* to, int64_t size_bytes) override {
    End& end = in_[static_cast<size_t>(peer)];
    const int64_t count = std::min(size_bytes, end.waiting());
    if (count > 0) end.take(to, count);
    return count;
  }
  // Headers stay aligned: after the padding, the room is a multiple of kAlign, so a header always fits.
  static int64_t padding(int64_t size_bytes) { return round_up(size_bytes, kAlign) - size_bytes; }
  void wrote_message(int peer, int64_t size_bytes) override {
    out_[static_cast<size_t>(peer)].skip(padding(size_bytes));
  }
  void read_message(int peer, int64_t size_bytes) override { in_[static_cast<size_t>(peer)].skip(padding(size_bytes)); }
  void publish(int peer) override {
    out_[static_cast<size_t>(peer)].publish();
    bells_[static_cast<size_t>(peer)]->ring();
  }
  void release(int peer) override {
    if (in_[static_cast<size_t>(peer)].release()) bells_[static_cast<size_t>(peer)]->ring();
  }
  void begin_poll() override { seen_ = bells_[static_cast<size_t>(rank())]->rung.load(std::memory_order_seq_cst); }

  std::shared_ptr<void> owner_;
  std::vector<Bell*> bells_;
  std::vector<End> out_, in_;  // by peer
  uint32_t seen_ = 0;          // the number of rings of our bell at the last look
};

/// Touches every page at once, so that a process's memory does not depend on how much it sends.
std::shared_ptr<std::byte> map_and_close(int file, int64_t size_bytes) {
  void* base = MAP_FAILED;
  if (size_bytes > 0)
    base = mmap(nullptr, static_cast<size_t>(size_bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  close(file);
  if (base == MAP_FAILED) return nullptr;
  return {static_cast<std::byte*>(base),
          [size_bytes](std::byte* memory) { munmap(memory, static_cast<size_t>(size_bytes)); }};
}

}  // namespace

std::shared_ptr<std::byte> create_shared_memory(const std::string& name, int64_t size_bytes) {
  const int file = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  if (file < 0) return nullptr;
  // The pages are allocated now, because a missing page would raise a signal in the middle of a step.
  const bool has_room = posix_fallocate(file, 0, size_bytes) == 0;
  if (!has_room) shm_unlink(name.c_str());
  return map_and_close(file, has_room ? size_bytes : 0);
}

std::shared_ptr<std::byte> open_shared_memory(const std::string& name, int64_t size_bytes) {
  const int file = shm_open(name.c_str(), O_RDWR, 0);
  return file < 0 ? nullptr : map_and_close(file, size_bytes);
}

void remove_shared_memory(const std::string& name) { shm_unlink(name.c_str()); }

namespace {

/// "/slipstream-SPACE-".
std::string space_prefix() {
  struct stat space {};
  return fmt::format("/slipstream-{}-", ::stat("/proc/self/ns/pid", &space) == 0 ? space.st_ino : 0);
}

}  // namespace

std::string shared_memory_prefix(int64_t process) { return fmt::format("{}{}-", space_prefix(), process); }

void remove_abandoned_memory() {
  const std::string prefix = space_prefix();
  std::error_code error;
  std::vector<std::string> abandoned;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", error)) {
    const std::string name = "/" + entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    pid_t process = 0;
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), process);
    struct stat info {};
    const bool own = ::stat(entry.path().c_str(), &info) == 0 && info.st_uid == ::geteuid();
    if (own && process > 0 && ::kill(process, 0) != 0 && errno == ESRCH) abandoned.push_back(name);
  }
  for (const std::string& name : abandoned) shm_unlink(name.c_str());
}

int64_t shared_area_bytes(int size) {
  return round_up(static_cast<int64_t>(sizeof(Bell)) + size * ring_stride(size), int64_t{4096});
}

void prepare_shared_area(std::byte* area, int size) {
  new (area) Bell;
  for (int sender = 0; sender < size; ++sender) new (area + sizeof(Bell) + sender * ring_stride(size)) Ring;
}

std::unique_ptr<HostTransport> make_shared_transport(std::vector<std::byte*> areas, int rank, std::vector<int> names,
                                                     std::shared_ptr<void> owner) {
  return std::make_unique<SharedTransport>(std::move(areas), rank, std::move(names), std::move(owner));
}

}  // namespace slipstream::comm

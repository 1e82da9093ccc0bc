// SPDX-License-Identifier: Apache-2.0
// Rings with one writer and one reader each. Positions count bytes since the start and are published with release, so
// that a reader that sees a position sees the bytes before it.

#include "comm/host/shared_transport.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <deque>
#include <new>
#include <set>

#include "engine/base/check.h"
#include "engine/base/units.h"

namespace slipstream::comm {
namespace {

// All rings into a rank together: enough for two chunks of a pipelined collective between two ranks, little with many.
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
    // The kernel compares again: a ring in between keeps this rank awake.
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

struct Header {
  int64_t size_bytes = 0;
  int32_t tag = 0;
  int32_t unused = 0;
};
constexpr int64_t kAlign = sizeof(Header);

int64_t ring_bytes(int size) {
  return std::clamp(kAreaBytes / std::max(1, size - 1), kSmallestRingBytes, kLargestRingBytes) / kAlign * kAlign;
}
int64_t ring_stride(int size) { return static_cast<int64_t>(sizeof(Ring)) + round_up(ring_bytes(size), 64); }

/// One end of a ring: moves as many bytes as are there.
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
  /// Asks the reader to ring when it has made room; room may have come meanwhile.
  void ask_for_room() { ring_->full.store(1, std::memory_order_seq_cst); }

  // The reader's side.
  int64_t waiting() const { return static_cast<int64_t>(ring_->written.load(std::memory_order_acquire) - here_); }
  void take(void* to, int64_t size_bytes) {
    in_two(size_bytes, [&](int64_t at, int64_t begin, int64_t count) {
      std::memcpy(static_cast<std::byte*>(to) + begin, data_ + at, static_cast<size_t>(count));
    });
  }
  void skip(int64_t size_bytes) { here_ += static_cast<uint64_t>(size_bytes); }
  /// Gives the room back; returns true if the writer waits for it.
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
  uint64_t here_ = 0;  // position of this end, ahead of what is published
};

class SharedTransport final : public HostTransport {
 public:
  SharedTransport(std::vector<std::byte*> areas, int rank, std::vector<int> names, std::shared_ptr<void> owner)
      : owner_(std::move(owner)), rank_(rank), size_(static_cast<int>(areas.size())), names_(std::move(names)) {
    for (int r = 0; r < size_; ++r) {
      bells_.push_back(std::launder(reinterpret_cast<Bell*>(areas[static_cast<size_t>(r)])));
      out_.emplace_back(areas[static_cast<size_t>(r)], rank, size_);
      in_.emplace_back(areas[static_cast<size_t>(rank)], r, size_);
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void send(int peer, int tag, const void* data, int64_t size_bytes, uint64_t token) override {
    Outbox& box = out_[static_cast<size_t>(peer)];
    box.messages.push_back({tag, static_cast<const std::byte*>(data), size_bytes, token});
    ++outstanding_;
    if (box.messages.size() == 1) push(peer);
  }

  void recv(int peer, int tag, void* data, int64_t size_bytes, uint64_t token) override {
    Inbox& box = in_[static_cast<size_t>(peer)];
    ++outstanding_;
    const Posted posted{tag, static_cast<std::byte*>(data), size_bytes, token};
    // A message that arrived before its receive was posted.
    const auto early =
        std::find_if(box.early.begin(), box.early.end(), [&](const Early& e) { return !e.claimed && e.tag == tag; });
    if (early == box.early.end()) return box.posted.push_back(posted);
    check_size(peer, size_bytes, std::ssize(early->bytes));
    early->claimed = true;
    early->posted = posted;
    settle(box);
  }

  int poll(uint64_t* tokens, int capacity) override {
    seen_ = bells_[static_cast<size_t>(rank_)]->rung.load(std::memory_order_seq_cst);
    for (int peer = 0; peer < size_; ++peer)
      if (!out_[static_cast<size_t>(peer)].messages.empty()) push(peer);
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_) pull(peer);
    const int given = static_cast<int>(std::min<size_t>(static_cast<size_t>(capacity), finished_.size()));
    std::copy_n(finished_.begin(), given, tokens);
    finished_.erase(finished_.begin(), finished_.begin() + given);
    outstanding_ -= given;
    patient_ = given > 0;
    return given;
  }

  void wait(int64_t at_most_ns) override {
    for (Outbox& box : out_) {
      if (box.messages.empty()) continue;
      box.end.ask_for_room();
      if (box.end.room() >= (box.sent_bytes < 0 ? kAlign : 1)) return;
    }
    if (!is_aborted()) bells_[static_cast<size_t>(rank_)]->sleep(seen_, at_most_ns);
  }

  int outstanding() const override { return outstanding_; }
  std::string waiting_for() const override {
    std::set<int> peers;
    for (size_t r = 0; r < static_cast<size_t>(size_); ++r)
      if (!out_[r].messages.empty() || !in_[r].posted.empty() || in_[r].current.data) peers.insert(names_[r]);
    std::string text;
    for (int peer : peers) text += fmt::format("{}rank {}", text.empty() ? "" : ", ", peer);
    return text;
  }
  void reserve(int messages) override {
    finished_.reserve(std::max(finished_.capacity(), static_cast<size_t>(messages)));
  }

  void cancel() override {
    for (Outbox& box : out_) box.messages.clear();
    for (Inbox& box : in_) box.posted.clear(), box.early.clear(), box.current = {};
    finished_.clear();
    outstanding_ = 0;
  }
  void abort() override {
    aborted_.store(true, std::memory_order_seq_cst);
    bells_[static_cast<size_t>(rank_)]->ring();
  }
  bool is_aborted() const override { return aborted_.load(std::memory_order_acquire); }
  std::unique_ptr<HostTransport> split(int, int) override {
    throw CommError("[comm] a transport in shared memory cannot be split. Split its communicator.");
  }

 private:
  struct Sending {
    int tag = 0;
    const std::byte* data = nullptr;
    int64_t size_bytes = 0;
    uint64_t token = 0;
  };
  struct Outbox {
    Outbox(std::byte* area, int sender, int size) : end(area, sender, size) {}
    End end;
    std::deque<Sending> messages;
    int64_t sent_bytes = -1;  // of the first; -1: not yet its header
  };
  struct Posted {
    int tag = 0;
    std::byte* data = nullptr;
    int64_t size_bytes = 0;
    uint64_t token = 0;
  };
  struct Early {
    int tag = 0;
    std::vector<std::byte> bytes;
    bool complete = false;
    bool claimed = false;
    Posted posted;
  };
  /// The message that is flowing out of the ring now.
  struct Current {
    std::byte* data = nullptr;
    int64_t size_bytes = 0, taken_bytes = 0;
    uint64_t token = 0;
    bool is_early = false;  // into early.back()
  };
  struct Inbox {
    Inbox(std::byte* area, int sender, int size) : end(area, sender, size) {}
    End end;
    std::vector<Posted> posted;
    std::deque<Early> early;
    Current current;
    bool has_header = false;  // of a message without a posted receive
    Header header;
  };

  static int64_t padded(int64_t size_bytes) { return round_up(size_bytes, kAlign); }

  void push(int peer) {
    Outbox& box = out_[static_cast<size_t>(peer)];
    bool moved = false;
    while (!box.messages.empty()) {
      const Sending& message = box.messages.front();
      if (box.sent_bytes < 0) {
        if (box.end.room() < kAlign) break;
        const Header header{message.size_bytes, message.tag, 0};
        box.end.put(&header, kAlign);
        box.sent_bytes = 0;
        moved = true;
      }
      const int64_t left = message.size_bytes - box.sent_bytes;
      const int64_t count = std::min(left, box.end.room());
      if (count > 0) {
        box.end.put(message.data + box.sent_bytes, count);
        box.sent_bytes += count;
        moved = true;
      }
      if (count < left) break;
      // Headers stay aligned: after the padding the room is a multiple of kAlign, and a header always fits.
      box.end.skip(padded(message.size_bytes) - message.size_bytes);
      finished_.push_back(message.token);
      box.sent_bytes = -1;
      box.messages.pop_front();
    }
    if (!moved) return;
    box.end.publish();
    bells_[static_cast<size_t>(peer)]->ring();
  }

  void pull(int peer) {
    Inbox& box = in_[static_cast<size_t>(peer)];
    while (true) {
      if (!box.current.data && !begin_message(peer, box)) break;
      Current& current = box.current;
      const int64_t left = current.size_bytes - current.taken_bytes;
      const int64_t count = std::min(left, box.end.waiting());
      if (count > 0) box.end.take(current.data + current.taken_bytes, count);
      current.taken_bytes += count;
      if (count < left) break;
      box.end.skip(padded(current.size_bytes) - current.size_bytes);
      if (current.is_early)
        box.early.back().complete = true;
      else
        finished_.push_back(current.token);
      current = {};
      settle(box);
    }
    if (box.end.release()) bells_[static_cast<size_t>(peer)]->ring();
  }

  bool begin_message(int peer, Inbox& box) {
    if (!box.has_header) {
      if (box.end.waiting() < kAlign) return false;
      box.end.take(&box.header, kAlign);
      box.has_header = true;
    }
    const auto posted =
        std::find_if(box.posted.begin(), box.posted.end(), [&](const Posted& p) { return p.tag == box.header.tag; });
    if (posted != box.posted.end()) {
      check_size(peer, posted->size_bytes, box.header.size_bytes);
      // An empty message needs an address as well, because null means no message.
      box.current = {posted->data ? posted->data : &nowhere_, posted->size_bytes, 0, posted->token, false};
      box.posted.erase(posted);
    } else {
      // The message stays in the ring while completions are pending that may post its receive.
      if (patient_ || !finished_.empty()) return false;
      Early& early = box.early.emplace_back();
      early.tag = box.header.tag;
      early.bytes.resize(static_cast<size_t>(box.header.size_bytes));
      box.current = {early.bytes.empty() ? &nowhere_ : early.bytes.data(), box.header.size_bytes, 0, 0, true};
    }
    box.has_header = false;
    return true;
  }

  /// Delivers early messages that are complete and whose receives are posted. A message still flowing is the last.
  void settle(Inbox& box) {
    for (auto early = box.early.begin(); early != box.early.end();) {
      if (!early->claimed || !early->complete) {
        ++early;
        continue;
      }
      if (!early->bytes.empty()) std::memcpy(early->posted.data, early->bytes.data(), early->bytes.size());
      finished_.push_back(early->posted.token);
      early = box.early.erase(early);
    }
  }

  void check_size(int peer, int64_t expected_bytes, int64_t came_bytes) const {
    if (expected_bytes == came_bytes) return;
    throw CommError(
        "[comm] rank {} expects {} bytes from rank {}, which sends {}. Both must launch the same verbs in the same "
        "order.",
        names_[static_cast<size_t>(rank_)], expected_bytes, names_[static_cast<size_t>(peer)], came_bytes);
  }

  std::shared_ptr<void> owner_;
  int rank_, size_;
  std::vector<int> names_;
  std::vector<Bell*> bells_;
  std::vector<Outbox> out_;
  std::vector<Inbox> in_;
  std::vector<uint64_t> finished_;  // completed, not yet handed out
  int outstanding_ = 0;             // includes the finished ones
  uint32_t seen_ = 0;               // how often our bell had rung at the last look
  bool patient_ = false;            // the last poll returned completions
  std::byte nowhere_{};
  std::atomic<bool> aborted_{false};
};

/// Every page is touched now, so that a process's memory does not depend on how much it sends.
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
  // Allocated now: a missing page would later raise a signal in the middle of a step.
  const bool has_room = posix_fallocate(file, 0, size_bytes) == 0;
  if (!has_room) shm_unlink(name.c_str());
  return map_and_close(file, has_room ? size_bytes : 0);
}

std::shared_ptr<std::byte> open_shared_memory(const std::string& name, int64_t size_bytes) {
  const int file = shm_open(name.c_str(), O_RDWR, 0);
  return file < 0 ? nullptr : map_and_close(file, size_bytes);
}

void remove_shared_memory(const std::string& name) { shm_unlink(name.c_str()); }

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

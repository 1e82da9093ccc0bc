// SPDX-License-Identifier: Apache-2.0
#pragma once
// Messages on streams of bytes, one stream for every ordered pair of ranks. A stream has the header and the bytes of a
// message, then those of the next one. The streams are rings in shared memory, or sockets.

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "comm/host/transport.h"

namespace slipstream::comm {

/// The memory of a message that arrived before its receive was posted, so that it does not hold up the messages after
/// it.
class StreamTransport : public HostTransport {
 public:
  int rank() const final { return rank_; }
  int size() const final { return static_cast<int>(names_.size()); }
  void send(int peer, int tag, const void* data, int64_t size_bytes, uint64_t token) final;
  void recv(int peer, int tag, void* data, int64_t size_bytes, uint64_t token) final;
  int poll(uint64_t* tokens, int capacity) final;
  int outstanding() const final { return outstanding_; }
  std::string waiting_for() const final;
  void reserve(int messages) final;
  void cancel() final;
  void abort() override { aborted_.store(true, std::memory_order_seq_cst); }
  bool is_aborted() const final { return aborted_.load(std::memory_order_acquire); }

 protected:
  /// `names[r]` is the name of rank r in error messages.
  StreamTransport(int rank, std::vector<int> names);

  struct Header {
    int64_t size_bytes = 0;
    int32_t tag = 0;
    int32_t unused = 0;
  };
  static constexpr int64_t kHeaderBytes = sizeof(Header);

  /// Return the number of bytes that the stream took or gave; they never block. `more`: the next write follows
  /// immediately.
  virtual int64_t write(int peer, const std::byte* from, int64_t size_bytes, bool more) = 0;
  virtual int64_t read(int peer, std::byte* to, int64_t size_bytes) = 0;
  /// Called after the last byte of a message of `size_bytes`.
  virtual void wrote_message(int /*peer*/, int64_t /*size_bytes*/) {}
  virtual void read_message(int /*peer*/, int64_t /*size_bytes*/) {}
  /// Called after writes of at least one byte; release after reads.
  virtual void publish(int /*peer*/) {}
  virtual void release(int /*peer*/) {}
  /// Called before the streams are polled.
  virtual void begin_poll() {}

  bool sends_to(int peer) const { return !out_[static_cast<size_t>(peer)].empty(); }
  /// The bytes that the message which flows in from `peer` still lacks; 0 if none flows in.
  int64_t missing_from(int peer) const {
    const Current& current = in_[static_cast<size_t>(peer)].current;
    return current.data ? current.size_bytes - current.taken_bytes : 0;
  }

 private:
  struct Sending {
    int tag = 0;
    const std::byte* data = nullptr;
    int64_t size_bytes = 0;
    uint64_t token = 0;
  };
  struct Outbox {
    std::vector<Sending> messages;  // a vector, because a deque allocates and frees blocks as messages pass
    size_t first = 0;               // those before it have left

    bool empty() const { return first == messages.size(); }
    void push(const Sending& message) {
      if (messages.size() == messages.capacity())
        messages.erase(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(std::exchange(first, 0)));
      messages.push_back(message);
    }
    void pop() {
      if (++first == messages.size()) messages.clear(), first = 0;
    }
    Header header;           // the header of the first message
    int64_t sent_bytes = 0;  // of the header and the bytes of that message
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
  /// The message that is flowing out of the stream now.
  struct Current {
    std::byte* data = nullptr;
    int64_t size_bytes = 0, taken_bytes = 0;
    uint64_t token = 0;
    bool is_early = false;  // it goes into early.back()
  };
  struct Inbox {
    std::vector<Posted> posted;
    std::deque<Early> early;
    Current current;
    Header header;             // the header of the next message
    int64_t header_bytes = 0;  // the bytes of the header that have arrived
  };

  void push(int peer);
  void pull(int peer);
  bool begin_message(int peer, Inbox& box);
  void settle(Inbox& box);
  void check_size(int peer, int64_t expected_bytes, int64_t came_bytes) const;

  int rank_;
  std::vector<int> names_;
  std::vector<Outbox> out_;
  std::vector<Inbox> in_;
  std::vector<uint64_t> finished_;  // tokens that completed but were not yet returned
  int outstanding_ = 0;             // the number of messages, with the finished ones
  bool patient_ = false;            // the last poll returned completions
  std::byte nowhere_{};
  std::atomic<bool> aborted_{false};
};

}  // namespace slipstream::comm

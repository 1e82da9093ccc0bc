// SPDX-License-Identifier: Apache-2.0
#pragma once
// Measures how long a rank's own messages are on their way in one collective, without the waits for other ranks.

#include <algorithm>
#include <cstdint>
#include <vector>

namespace slipstream::comm {

/// The clock runs while messages of this rank are on their way and each peer that sends to it has been heard. A peer
/// that has not entered takes no messages, and a peer with a slow link is heard late, so a slow sender alone measures
/// the delay that it causes. Pure bookkeeping without a clock of its own.
class LinkClock {
 public:
  explicit LinkClock(int size) : peers_(static_cast<size_t>(size)) {}

  void begin() {
    std::fill(peers_.begin(), peers_.end(), Peer::silent);
    sending_ = unheard_ = 0;
    runs_ = false;
    total_ns_ = 0;
  }
  void send_posted(int64_t now_ns) {
    ++sending_;
    update(now_ns);
  }
  void recv_posted(int peer, int64_t now_ns) {
    if (peers_[static_cast<size_t>(peer)] != Peer::silent) return;
    peers_[static_cast<size_t>(peer)] = Peer::awaited;
    ++unheard_;
    update(now_ns);
  }
  void send_ended(int64_t now_ns) {
    --sending_;
    update(now_ns);
  }
  void recv_ended(int peer, int64_t now_ns) {
    if (peers_[static_cast<size_t>(peer)] != Peer::awaited) return;
    peers_[static_cast<size_t>(peer)] = Peer::heard;
    --unheard_;
    update(now_ns);
  }
  int64_t total_ns() const { return total_ns_; }

 private:
  enum class Peer : uint8_t { silent, awaited, heard };
  void update(int64_t now_ns) {
    if (runs_) total_ns_ += now_ns - since_ns_;
    since_ns_ = now_ns;
    runs_ = sending_ > 0 && unheard_ == 0;
  }
  std::vector<Peer> peers_;
  int sending_ = 0, unheard_ = 0;
  bool runs_ = false;
  int64_t since_ns_ = 0, total_ns_ = 0;
};

}  // namespace slipstream::comm

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Messages between machines over TCP: every group has a connection of its own to each peer.
//
// Channels therefore share a link in equal parts, as the rehearsal assumes, and no message waits for a message of
// another channel. An idle rank sleeps until the kernel has bytes or room for it, so waiting uses no core.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/host/transport.h"

namespace slipstream::comm {

/// The sockets of this rank by peer; -1 where there is none, as for the rank itself. Owns them.
class Sockets {
 public:
  Sockets() = default;
  explicit Sockets(size_t ranks) : of_peer_(ranks, -1) {}
  ~Sockets();
  Sockets(Sockets&& other) noexcept : of_peer_(std::move(other.of_peer_)) { other.of_peer_.clear(); }
  Sockets& operator=(Sockets&& other) noexcept {
    of_peer_.swap(other.of_peer_);
    return *this;
  }
  int operator[](size_t peer) const { return of_peer_[peer]; }
  void set(size_t peer, int descriptor) { of_peer_[peer] = descriptor; }
  size_t size() const { return of_peer_.size(); }
  bool empty() const { return of_peer_.empty(); }

 private:
  std::vector<int> of_peer_;
};

/// Blocks. Collective. Returns the text of every rank, by rank.
using AllGatherText = std::function<std::vector<std::string>(const std::string&)>;

/// Blocks. Collective; takes at most some seconds longer than `all_gather`. Connects `rank` with each peer for which
/// `far` is true. The result is empty on all ranks if one of them is not `willing` or could not connect.
Sockets connect_sockets(int rank, const std::vector<bool>& far, bool willing, const AllGatherText& all_gather);

/// A transport to the peers that have a socket.
std::unique_ptr<HostTransport> make_socket_transport(Sockets sockets, int rank);

}  // namespace slipstream::comm

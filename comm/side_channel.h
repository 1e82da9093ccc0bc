// SPDX-License-Identifier: Apache-2.0
#pragma once
// Small messages between rank 0 and the other ranks over TCP, independent of MPI and NCCL.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace slipstream::comm {

/// One connection from every rank to rank 0. One thread uses it. No failure throws: a peer that cannot be reached is
/// absent.
class SideChannel {
 public:
  struct Message {
    int rank = 0;
    char kind = 0;  // kEnded: the connection ended
    std::string body;
  };
  static constexpr char kEnded = 0;

  /// Rank 0. Listens on a free port, which belongs to the loopback interface if all ranks are on this machine.
  static std::unique_ptr<SideChannel> listen(int size, bool only_here, const std::string& token);
  /// Another rank. Connects to the first address at which rank 0 answers with the token. Each attempt may take a
  /// second.
  static std::unique_ptr<SideChannel> connect(int rank, const std::string& addresses, bool same_host,
                                              const std::string& token);
  ~SideChannel();
  SideChannel(const SideChannel&) = delete;
  SideChannel& operator=(const SideChannel&) = delete;

  /// "PORT ADDRESS ...", which connect needs.
  const std::string& addresses() const { return addresses_; }
  bool reaches(int rank) const { return peers_.contains(rank); }
  /// The ranks that are connected.
  std::vector<int> reached() const;
  /// Makes the connections end with this process and not with this object, so that the other side sees the end of the
  /// process.
  void end_with_process() { peers_.clear(); }

  /// Enqueues the message, and sends what the connection takes. The message is dropped if the rank is absent or takes
  /// nothing.
  void send(int rank, char kind, std::string_view body);
  /// Like send, to all ranks.
  void send_all(char kind, std::string_view body);
  /// Blocks until a message has come, `wake` (a file descriptor) is readable, or the time is over. Returns the messages
  /// that have come.
  std::vector<Message> wait(std::chrono::milliseconds at_most, int wake);

 private:
  struct Peer {
    int descriptor = -1;
    std::string in, out;
  };
  SideChannel() = default;
  void accept_one();
  void flush(Peer& peer);
  /// False: the connection ended.
  bool receive(Peer& peer);
  void take_messages(int rank, Peer& peer, std::vector<Message>& messages);

  int listener_ = -1;
  int size_ = 1;
  std::string token_;
  std::string addresses_;
  std::map<int, Peer> peers_;
  std::vector<Peer> strangers_;  // connected, without a valid greeting
};

}  // namespace slipstream::comm

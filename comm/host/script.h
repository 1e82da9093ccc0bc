// SPDX-License-Identifier: Apache-2.0
#pragma once
// A collective as reactions to completed messages: the messages to post at the start and after each completion.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/host/bind.h"
#include "comm/host/link_clock.h"
#include "comm/host/reduce.h"
#include "comm/host/route_table.h"
#include "comm/host/transport.h"
#include "engine/device/clock.h"

namespace slipstream::comm {

/// The purpose of a message; it distinguishes messages between one pair of ranks.
enum class Phase : uint8_t { reduce, gather, whole, rendezvous };

/// A completed message: number `index` of its phase, sent to or received from `peer`.
struct Arrival {
  bool received = false;
  Phase phase = Phase::whole;
  int peer = 0;
  int index = 0;
};

/// Posts messages whose tags and tokens are made of (phase, index).
class Poster {
 public:
  /// `clock` measures the messages of this poster; with null they are not measured.
  explicit Poster(HostTransport& transport, LinkClock* clock = nullptr) : transport_(transport), clock_(clock) {
    if (clock_) clock_->begin();
  }
  void send(Phase phase, int peer, int index, const std::byte* data, int64_t size_bytes) {
    transport_.send(peer, tag(phase, index), data, size_bytes, token({false, phase, peer, index}));
    sent_bytes_ += size_bytes;
    if (clock_) clock_->send_posted(monotonic_ns());
  }
  void recv(Phase phase, int peer, int index, std::byte* data, int64_t size_bytes) {
    transport_.recv(peer, tag(phase, index), data, size_bytes, token({true, phase, peer, index}));
    if (clock_) clock_->recv_posted(peer, monotonic_ns());
  }
  /// Reports that a message has completed.
  void completed(const Arrival& arrival) {
    if (!clock_) return;
    if (arrival.received)
      clock_->recv_ended(arrival.peer, monotonic_ns());
    else
      clock_->send_ended(monotonic_ns());
  }
  /// Like send and recv, in pieces of kLargestMessageBytes. Returns the index after the last piece.
  int send_whole(int peer, const std::byte* data, int64_t size_bytes, int index = 0);
  int recv_whole(int peer, std::byte* data, int64_t size_bytes, int index = 0);

  int64_t sent_bytes() const { return sent_bytes_; }

  static uint64_t token(const Arrival& arrival) {
    return uint64_t{arrival.received} << 63 | static_cast<uint64_t>(arrival.phase) << 56 |
           static_cast<uint64_t>(arrival.peer) << 32 | static_cast<uint32_t>(arrival.index);
  }
  static Arrival arrival(uint64_t token) {
    return {(token >> 63) != 0, static_cast<Phase>(token >> 56 & 0x7f), static_cast<int>(token >> 32 & 0xffffff),
            static_cast<int>(token & 0xffffffff)};
  }

 private:
  // MPI guarantees tags up to 32767, and far fewer than 4096 messages of a phase are in flight.
  static int tag(Phase phase, int index) { return static_cast<int>(phase) * 4096 + index % 4096; }
  HostTransport& transport_;
  LinkClock* clock_;
  int64_t sent_bytes_ = 0;
};

/// One bound verb. start is called once per launch, and the launch ends when no message is outstanding. `staging`
/// points to staging_bytes() bytes for the whole launch. The verbs of a communicator run one after another and share
/// this memory.
class Script {
 public:
  virtual ~Script() = default;
  virtual void start(Poster& post, const std::byte* from, std::byte* to, std::byte* staging) = 0;
  virtual void arrived(Poster& post, const Arrival& arrival) = 0;
  /// The memory that a launch needs in addition to its operands.
  virtual int64_t staging_bytes() const { return 0; }
  /// The largest number of messages in flight at once.
  virtual int messages() const = 0;
};

/// all_reduce and reduce_scatter: every rank sends part j to rank j, which adds the parts in rank order; in all_reduce
/// it then sends the sums back. The parts travel in chunks: while one chunk is added and its sum sent, the next one is
/// in flight.
std::unique_ptr<Script> make_direct_reduce(const Verb& verb, int rank, int size);
/// all_reduce, reduce_scatter and all_gather along the ring rank -> rank + 1. Part j starts at rank j + 1 and ends at
/// rank j: the sum is ((x[j+1] + x[j+2]) + ...) + x[j], rounded to the type at each step. Deterministic, but with more
/// than two ranks the bits differ from `direct`.
std::unique_ptr<Script> make_ring(const Verb& verb, int rank, int size);
/// The verbs without sums; all pairs of ranks exchange at once.
std::unique_ptr<Script> make_direct_moves(const Verb& verb, int rank, int size);

/// all_to_all_v with sizes that are known when the work runs.
class RoutedScript : public Script {
 public:
  /// Called before start. The memory of `table` stays until the launch has ended.
  virtual void route(const RouteTable& table) = 0;
};
/// Every piece is a message from its place to its place, so that no rank copies or collects pieces.
std::unique_ptr<RoutedScript> make_routed_moves(const Verb& verb, int rank, int size);

std::unique_ptr<Script> make_script(const Verb& verb, int rank, int size);

}  // namespace slipstream::comm

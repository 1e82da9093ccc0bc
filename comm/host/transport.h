// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bytes between two ranks of a group, without blocking: all that a host collective needs from a network.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace slipstream::comm {

/// Used by one thread at a time, the stream's that runs the works; abort and is_aborted from any.
class HostTransport {
 public:
  virtual ~HostTransport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Enqueues. Messages of one (sender, receiver, tag) arrive in order. `data` stays untouched until `token` completes.
  /// Throws: CommError.
  virtual void send(int peer, int tag, const void* data, int64_t size_bytes, uint64_t token) = 0;
  virtual void recv(int peer, int tag, void* data, int64_t size_bytes, uint64_t token) = 0;
  /// Moves what can move; writes the tokens that have completed since the last call, returns how many.
  virtual int poll(uint64_t* tokens, int capacity) = 0;
  /// Blocks. Until something may have moved since the last poll that gave nothing, or for about this long; may return
  /// early. A transport that cannot be woken by its peers sleeps for less, so that polling is seldom but not late: see
  /// polling_pause_ns.
  virtual void wait(int64_t at_most_ns) = 0;
  virtual int outstanding() const = 0;
  /// "rank 1, rank 3": whom the outstanding messages are for. Pure.
  virtual std::string waiting_for() const = 0;
  /// Room for this many messages at once, so that none is allocated in a step.
  virtual void reserve(int messages) = 0;

  /// Forgets all outstanding messages; after a failure, before their memory goes.
  virtual void cancel() = 0;
  virtual void abort() = 0;
  virtual bool is_aborted() const = 0;
  virtual std::unique_ptr<HostTransport> split(int color, int key) = 0;
};

/// How long to sleep between two polls when nothing has come for `idle_ns`: an eighth of that, so that a message is
/// late by little of what it took. Every poll takes the core from compute.
constexpr int64_t polling_pause_ns(int64_t idle_ns) { return std::clamp<int64_t>(idle_ns / 8, 2'000, 200'000); }

/// Largest message given to a transport; longer ones travel in pieces.
constexpr int64_t kLargestMessageBytes = int64_t{64} << 20;
/// Chunk of the pipelined collectives: one chunk is added while the next is on its way.
constexpr int64_t kChunkBytes = int64_t{256} << 10;

}  // namespace slipstream::comm

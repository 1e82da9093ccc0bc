// SPDX-License-Identifier: Apache-2.0
#pragma once
// Non-blocking transfer of bytes between two ranks of a group. A host collective needs nothing else from a network.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace slipstream::comm {

/// One thread at a time uses it, the thread of the stream that runs the works. Any thread may call abort and
/// is_aborted.
class HostTransport {
 public:
  virtual ~HostTransport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Enqueues. Messages of one (sender, receiver, tag) arrive in order. `data` must stay unchanged until `token`
  /// completes.
  /// Throws: CommError.
  virtual void send(int peer, int tag, const void* data, int64_t size_bytes, uint64_t token) = 0;
  virtual void recv(int peer, int tag, void* data, int64_t size_bytes, uint64_t token) = 0;
  /// Moves the bytes that can move. Writes the tokens that completed since the last call, and returns their number.
  virtual int poll(uint64_t* tokens, int capacity) = 0;
  /// Blocks until something may have moved since the last poll that returned nothing, or for about `at_most_ns`; it may
  /// return early. A transport whose peers cannot wake it sleeps for shorter times, so that it polls seldom but is not
  /// late (see polling_pause_ns).
  virtual void wait(int64_t at_most_ns) = 0;
  virtual int outstanding() const = 0;
  /// Pure. "rank 1, rank 3": the peers of the outstanding messages.
  virtual std::string waiting_for() const = 0;
  /// Reserves memory for this many messages at once, so that a step allocates none.
  virtual void reserve(int messages) = 0;

  /// Drops all outstanding messages; called after a failure, before their memory is freed.
  virtual void cancel() = 0;
  virtual void abort() = 0;
  virtual bool is_aborted() const = 0;
};

/// The time to sleep between two polls after `idle_ns` without a message: an eighth of `idle_ns`, so that the delay
/// stays small relative to the wait. Every poll takes the core from compute.
constexpr int64_t polling_pause_ns(int64_t idle_ns) { return std::clamp<int64_t>(idle_ns / 8, 2'000, 200'000); }

/// The largest message that a transport takes. Longer ones travel in pieces.
constexpr int64_t kLargestMessageBytes = int64_t{64} << 20;
/// The chunk of the pipelined collectives: one chunk is added while the next is in flight.
constexpr int64_t kChunkBytes = int64_t{256} << 10;

}  // namespace slipstream::comm

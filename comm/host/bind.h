// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every communicator shares when it binds a verb: the checks, the accesses, the cost, and entry times.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace slipstream::comm {

struct CommOptions {
  double timeout_seconds = 600;  // a transfer that moves nothing for so long throws CommError
  bool share_memory =
      true;  // processes: peers of one machine copy through shared memory; false: MPI carries their messages, too
};

/// A verb as it was bound.
struct Verb {
  Op op = Op::all_reduce;
  Transfer transfer;
  int root = 0;        // broadcast
  int to_peer = -1;    // send, exchange
  int from_peer = -1;  // recv, exchange
};

/// "all_reduce of 1024 float32". Pure.
std::string describe(const Verb& verb);

/// State of a bound work that outlives copies of it.
struct BoundState {
  std::atomic<int64_t> last_entry_ns{0};
};
using BoundBody = std::function<void(LaunchContext&, BoundState&)>;

/// Checks the verb, and makes a Work with its name, accesses and cost that runs `body`. Pure.
/// Throws: CommError if a rank, a size, a type or an overlap is wrong.
Work bind(const Verb& verb, int rank, int size, BoundBody body);

/// When the last member entered the work's most recent launch, on CLOCK_MONOTONIC; 0 if its communicator does not know.
/// Read it after an event that covers the launch. Pure.
int64_t last_entry_ns(const Work& work);

/// Bytes that the verb reads from `from` and writes to `to`, per rank. Pure.
int64_t from_bytes(const Verb& verb, int size);
int64_t to_bytes(const Verb& verb, int size);

/// Communicators whose members can tell each other when they entered.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  /// Blocks. Collective among the caller and `peers`: the latest of their `entry_ns`.
  /// Throws: CommError on abort and timeout.
  virtual int64_t meet(int64_t entry_ns, const std::vector<int>& peers) = 0;
};

/// The ranks that a verb of `rank` moves bytes with. Pure.
std::vector<int> peers_of(const Verb& verb, int rank, int size);

}  // namespace slipstream::comm

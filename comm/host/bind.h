// SPDX-License-Identifier: Apache-2.0
#pragma once
// The common parts of all communicators' verbs: checks, accesses, cost and entry times.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace slipstream::comm {

struct CommOptions {
  double timeout_seconds = 600;  // a transfer without progress for so long throws CommError
  // The next two are for ranks in processes. MPI carries the messages that neither of them may carry.
  bool share_memory = true;  // peers on one machine copy through shared memory
  bool sockets = true;       // peers on other machines have a TCP connection, unless the network has faster ways
  /// Called before a late transfer throws, with the same sentence, while all works are as they were. Empty: not called.
  std::function<void(const std::string& sentence)> late = {};
};

/// A verb with its operands.
struct Verb {
  Op op = Op::all_reduce;
  Transfer transfer;
  int to_peer = -1;    // send, exchange
  int from_peer = -1;  // recv, exchange
  Slice counts = {};   // all_to_all_v
  Route route = {};    // all_to_all_v
};
/// Pure. Transfer::elems is balanced_elems().
Verb verb_of(const RoutedTransfer& transfer, int size);

/// "all_reduce of 1024 float32", "all_to_all_v of 64 rows of 512 float32, bound 128". Pure.
std::string describe(const Verb& verb);

/// State of a bound work that its copies share.
struct BoundState {
  std::atomic<int64_t> last_entry_ns{0};
};
using BoundBody = std::function<void(LaunchContext&, BoundState&)>;

/// Pure. Checks the verb and makes a Work with its name, accesses and cost that runs `body`.
/// Throws: CommError if a rank, a size, a type or an overlap is wrong.
Work bind(const Verb& verb, int rank, int size, BoundBody body);

/// Pure. The time on CLOCK_MONOTONIC at which the last member entered the work's most recent launch, or 0 if the
/// communicator does not know it. Read it after an event that covers the launch.
int64_t last_entry_ns(const Work& work);

/// Pure. The bytes per rank that the verb reads from `from` and writes to `to`.
int64_t from_bytes(const Verb& verb, int size);
int64_t to_bytes(const Verb& verb, int size);

/// A communicator whose members can exchange their entry times.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  /// Blocks. Collective among the caller and `peers`. Returns the latest of their `entry_ns`.
  /// Throws: CommError on abort and timeout.
  virtual int64_t meet(int64_t entry_ns, const std::vector<int>& peers) = 0;
};

/// Pure. The ranks that exchange bytes with `rank` in this verb.
std::vector<int> peers_of(const Verb& verb, int rank, int size);

}  // namespace slipstream::comm

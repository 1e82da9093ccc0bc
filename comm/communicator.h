// SPDX-License-Identifier: Apache-2.0
#pragma once
// A group of ranks and its verbs. A verb returns a Work, which is bound once and launched on the channel's stream in
// every step.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/base/dtype.h"
#include "engine/device/work.h"
#include "engine/plan/plan.h"

namespace slipstream::comm {

/// The operands of a verb. `from` and `to` may be the same memory where the verb allows it. Sums add f32 and bf16 in
/// float and f64 in double, in rank order 0, 1, ..., n-1, and round to dtype once. i32 and u8 are moved but not summed.
struct Transfer {
  Slice from;
  Slice to;
  int64_t elems = 0;  // elements of one rank's part, as in Task::elems
  DType dtype = DType::f32;
  Algorithm algorithm = Algorithm::direct;
};

/// The operands of all_to_all_v. `from` and `to` are separate memory.
struct RoutedTransfer {
  Slice from;
  Slice to;
  Slice counts;  // int32 [ranks][ranks * experts], the same on all ranks; read when the work runs
  Route route;
  DType dtype = DType::f32;  // the type of an element of a row
};

/// One group, seen from one of its ranks.
///
/// Every member must launch the same verbs with the same elems, dtype and algorithm in the same order; send, recv and
/// exchange pair up per (sender, receiver). Works may be launched any number of times, one at a time.
/// Owns its connection; works borrow the communicator. Throws CommError when built from invalid arguments; a work that
/// cannot finish (peer gone, abort, timeout) throws CommError inside its stream.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// to[i] = sum over ranks of from[i], the same bits on every rank. In place: to == from.
  virtual Work all_reduce(const Transfer& transfer) = 0;
  /// to[i] = sum over ranks of from[rank * elems + i]. In place: to == the rank-th part of from.
  virtual Work reduce_scatter(const Transfer& transfer) = 0;
  /// to[r * elems + i] = from[i] of rank r. In place: from == the rank-th part of to.
  virtual Work all_gather(const Transfer& transfer) = 0;
  /// to[r * elems + i] = from[rank * elems + i] of rank r. Not in place.
  virtual Work all_to_all(const Transfer& transfer) = 0;
  /// Moves rows between ranks that hold tokens (sources) and ranks that hold experts (owners). Every rank is both, and
  /// owns `experts` of all ranks * experts. counts[s][e] rows travel between source s and the owner of expert e.
  ///   Dispatch: `from` has this rank's rows in the order of their experts. `to` gets the rows of this rank's experts
  ///   in the order (expert, source, position): piece (expert j, source s) begins after all rows of the experts before
  ///   j and after the rows for j of the sources before s.
  ///   Reverse: every row travels back. `from` has the owner's order, `to` that of the source.
  /// Plans fix the bounds, and a work moves exactly the counted rows. No memory is allocated for them. The owner's
  /// rows [begin_rows, begin_rows + bound_rows) of that order travel, and the owner's memory begins with the first of
  /// them. Other rows do not travel in either direction, and their bytes in `to` stay as they are. Bytes after the
  /// last row also stay.
  /// The work throws CommError before any row moves if a count is negative, or if a source has more than `source_rows`.
  virtual Work all_to_all_v(const RoutedTransfer& transfer) = 0;
  virtual Work send(const Transfer& transfer, int peer) = 0;  // reads from
  virtual Work recv(const Transfer& transfer, int peer) = 0;  // writes to
  /// Sends `from` to `to_peer` and receives `to` from `from_peer` as one operation, so that a ring of exchanges cannot
  /// deadlock.
  virtual Work exchange(const Transfer& transfer, int to_peer, int from_peer) = 0;

  /// Operand bytes that this rank's works have sent so far; none where the library does not report it. Callable from
  /// any thread.
  virtual std::optional<int64_t> sent_bytes() const { return {}; }

  /// Makes every work in flight and every later one throw CommError. Callable from any thread, more than once. May
  /// block until the other communicators of the device are also aborted and all graphs that hold works of this one are
  /// gone (see comm/watchdog.h).
  virtual void abort() = 0;

  /// Never blocks. Reports an error that the wire has seen since the communicator was made (a peer is gone, a link is
  /// down) and that no work has thrown. Callable from any thread.
  /// Throws: CommError with the wire's own message.
  virtual void check_for_errors() {}
  /// Blocks. Collective. Registers memory that later works use, so that the wire can reach it without copies. The
  /// memory must outlive this communicator. Returns the reason if the wire does not use registered memory, and an empty
  /// text if it does or if it needs none.
  virtual std::string register_memory(std::byte* /*base*/, int64_t /*size_bytes*/) { return {}; }
  /// Undoes register_memory. Call it on all ranks or on none, before the first work.
  virtual void forget_memory() {}
};

}  // namespace slipstream::comm

// SPDX-License-Identifier: Apache-2.0
// The checks of a verb and its declared accesses.

#include "comm/host/bind.h"

#include "comm/host/reduce.h"
#include "comm/link.h"
#include "engine/base/check.h"

namespace slipstream::comm {
namespace {

/// The function of a bound work. It is a named type so that last_entry_ns can find its state inside Work::fn.
struct BoundFunction {
  std::shared_ptr<BoundState> state;
  BoundBody body;
  void operator()(LaunchContext& context) const { body(context, *state); }
};

bool sums(Op op) { return op == Op::all_reduce || op == Op::reduce_scatter; }

void check_peer(const Verb& verb, const char* what, int peer, int size) {
  if (peer < 0 || peer >= size)
    throw CommError("[comm] {}: {} is {}, but the group has ranks 0 to {}. Use a rank of the group.", describe(verb),
                    what, peer, size - 1);
}

void check_slice(const Verb& verb, const char* what, const Slice& slice, int64_t need_bytes) {
  if (slice.size_bytes < need_bytes || slice.begin_bytes % size_of(verb.transfer.dtype) != 0)
    throw CommError(
        "[comm] {}: `{}` has {} bytes at byte {}, need {} bytes aligned to {}. Pass the whole buffer of the "
        "verb.",
        describe(verb), what, slice.size_bytes, slice.begin_bytes, need_bytes, size_of(verb.transfer.dtype));
}

/// The bytes of the rows that the memory of an owner or of a source holds.
int64_t rows_bytes(const Verb& verb, bool owner) {
  return bytes_of((owner ? verb.route.bound_rows : verb.route.source_rows) * verb.route.row_elems, verb.transfer.dtype);
}

void check_route(const Verb& verb, int size) {
  const Route& route = verb.route;
  if (route.experts < 1 || route.row_elems < 1 || route.source_rows < 0 || route.bound_rows < 0 || route.begin_rows < 0)
    throw CommError(
        "[comm] {}: {} experts on each rank, rows of {} elements, {} rows of a source and a bound of {} rows after {} "
        "were given. Need at least 1 expert and 1 element, and at least 0 rows.",
        describe(verb), route.experts, route.row_elems, route.source_rows, route.bound_rows, route.begin_rows);
  const int64_t need_bytes = 4 * int64_t{size} * size * route.experts;
  if (verb.counts.size_bytes != need_bytes || verb.counts.begin_bytes % 4 != 0)
    throw CommError(
        "[comm] {}: `counts` has {} bytes at byte {}, but {} ranks with {} experts each need {} bytes aligned to 4.",
        describe(verb), verb.counts.size_bytes, verb.counts.begin_bytes, size, route.experts, need_bytes);
  if (verb.counts.overlaps(verb.transfer.to))
    throw CommError("[comm] {}: `to` overlaps `counts`. Use separate memory.", describe(verb));
}

/// Do `from` and `to` overlap exactly as this verb requires for an operation in place?
bool is_in_place(const Verb& verb, const Slice& from, const Slice& to, int rank) {
  switch (verb.op) {
    case Op::all_reduce:
      return from == to;
    case Op::reduce_scatter:
      return to.begin_bytes == from.begin_bytes + rank * to.size_bytes;
    case Op::all_gather:
      return from.begin_bytes == to.begin_bytes + rank * from.size_bytes;
    default:
      return false;
  }
}

}  // namespace

Verb verb_of(const RoutedTransfer& transfer, int size) {
  return {.op = Op::all_to_all_v,
          .transfer = {.from = transfer.from,
                       .to = transfer.to,
                       .elems = balanced_elems(transfer.route, size),
                       .dtype = transfer.dtype},
          .counts = transfer.counts,
          .route = transfer.route};
}

std::string describe(const Verb& verb) {
  if (verb.op == Op::all_to_all_v)
    return fmt::format("{} of {} rows of {} {}, bound {}{}{}", name_of(verb.op), verb.route.source_rows,
                       verb.route.row_elems, name_of(verb.transfer.dtype), verb.route.bound_rows,
                       verb.route.begin_rows > 0 ? fmt::format(" after {}", verb.route.begin_rows) : "",
                       verb.route.reverse ? ", reverse" : "");
  return fmt::format("{} of {} {}", name_of(verb.op), verb.transfer.elems, name_of(verb.transfer.dtype));
}

int64_t from_bytes(const Verb& verb, int size) {
  if (verb.op == Op::all_to_all_v) return rows_bytes(verb, verb.route.reverse);
  const int64_t bytes = bytes_of(verb.transfer.elems, verb.transfer.dtype);
  if (verb.op == Op::reduce_scatter || verb.op == Op::all_to_all) return size * bytes;
  return verb.op == Op::recv ? 0 : bytes;
}

int64_t to_bytes(const Verb& verb, int size) {
  if (verb.op == Op::all_to_all_v) return rows_bytes(verb, !verb.route.reverse);
  const int64_t bytes = bytes_of(verb.transfer.elems, verb.transfer.dtype);
  if (verb.op == Op::all_gather || verb.op == Op::all_to_all) return size * bytes;
  return verb.op == Op::send ? 0 : bytes;
}

std::vector<int> peers_of(const Verb& verb, int rank, int size) {
  std::vector<int> peers;
  const auto add = [&](int peer) {
    if (peer >= 0 && peer != rank && (peers.empty() || peers.back() != peer)) peers.push_back(peer);
  };
  if (verb.op == Op::send || verb.op == Op::recv || verb.op == Op::exchange) {
    add(verb.to_peer);
    add(verb.from_peer);
  } else {
    for (int step = 1; step < size; ++step) add((rank + step) % size);
  }
  return peers;
}

Work bind(const Verb& verb, int rank, int size, BoundBody body) {
  const Transfer& transfer = verb.transfer;
  if (transfer.elems < 0) throw CommError("[comm] {}: the number of elements is negative.", describe(verb));
  if (sums(verb.op) && !can_sum(transfer.dtype))
    throw CommError("[comm] {}: this type can be moved but not summed. Use float32, bfloat16 or float64.",
                    describe(verb));
  if (verb.op == Op::send || verb.op == Op::exchange) check_peer(verb, "the receiver", verb.to_peer, size);
  if (verb.op == Op::recv || verb.op == Op::exchange) check_peer(verb, "the sender", verb.from_peer, size);
  if ((verb.op == Op::send && verb.to_peer == rank) || (verb.op == Op::recv && verb.from_peer == rank))
    throw CommError("[comm] {}: rank {} cannot send to or receive from itself. Use exchange.", describe(verb), rank);
  if (verb.op == Op::exchange && (verb.to_peer == rank) != (verb.from_peer == rank))
    throw CommError(
        "[comm] {}: rank {} sends to rank {} and receives from rank {}; a rank that exchanges with itself must do "
        "both.",
        describe(verb), rank, verb.to_peer, verb.from_peer);

  if (verb.op == Op::all_to_all_v) check_route(verb, size);

  const bool reads = verb.op != Op::recv, writes = verb.op != Op::send;
  Slice from = transfer.from, to = transfer.to;
  if (reads) check_slice(verb, "from", from, from_bytes(verb, size));
  if (writes) check_slice(verb, "to", to, to_bytes(verb, size));
  from.size_bytes = from_bytes(verb, size);
  to.size_bytes = to_bytes(verb, size);
  if (reads && writes && from.overlaps(to) && !is_in_place(verb, from, to, rank))
    throw CommError(
        "[comm] {}: `from` [{}, {}) and `to` [{}, {}) of one buffer overlap, but not as this verb "
        "requires for an operation in place. Use separate memory.",
        describe(verb), from.begin_bytes, from.end_bytes(), to.begin_bytes, to.end_bytes());

  Work work{.name = describe(verb)};
  work.cost.bytes = wire_cost(verb.op, transfer.algorithm, size, transfer.elems, transfer.dtype, Link{}).bytes;
  if (reads && from.size_bytes > 0) work.reads.push_back(from);
  if (verb.op == Op::all_to_all_v) work.reads.push_back(verb.counts);
  if (writes && to.size_bytes > 0) work.writes.push_back(to);
  work.fn = BoundFunction{std::make_shared<BoundState>(), std::move(body)};
  return work;
}

int64_t last_entry_ns(const Work& work) {
  const BoundFunction* function = work.fn.target<BoundFunction>();
  return function ? function->state->last_entry_ns.load(std::memory_order_acquire) : 0;
}

}  // namespace slipstream::comm

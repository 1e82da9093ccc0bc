// SPDX-License-Identifier: Apache-2.0
// Collectives that read the peers' memory directly, between barriers.

#include <algorithm>
#include <cstring>

#include "comm/host/reduce.h"
#include "comm/host/route_table.h"
#include "comm/thread/thread_group.h"
#include "comm/thread/thread_world.h"
#include "engine/base/check.h"
#include "engine/device/clock.h"

namespace slipstream::comm {
namespace {

void copy_bytes(std::byte* to, const std::byte* from, int64_t size_bytes) {
  if (to != from && size_bytes > 0) std::memcpy(to, from, static_cast<size_t>(size_bytes));
}

class ThreadCommunicator final : public Communicator, public Rendezvous {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank) : group_(std::move(group)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  Work all_reduce(const Transfer& transfer) override {
    return collective({.op = Op::all_reduce, .transfer = transfer});
  }
  Work reduce_scatter(const Transfer& transfer) override {
    return collective({.op = Op::reduce_scatter, .transfer = transfer});
  }
  Work all_gather(const Transfer& transfer) override {
    return collective({.op = Op::all_gather, .transfer = transfer});
  }
  Work all_to_all(const Transfer& transfer) override {
    return collective({.op = Op::all_to_all, .transfer = transfer});
  }
  Work all_to_all_v(const RoutedTransfer& transfer) override {
    const Verb verb = verb_of(transfer, size());
    const auto table = std::make_shared<RouteTable>();
    Work work = bind(
        verb, rank_, size(),
        [group = group_, rank = rank_, verb, what = describe(verb), table](LaunchContext& context, BoundState& state) {
          run_routed(*group, rank, verb, what, *table, context, state);
        });
    table->reserve(verb.route, size());
    return work;
  }
  Work send(const Transfer& transfer, int peer) override {
    return point_to_point({.op = Op::send, .transfer = transfer, .to_peer = peer});
  }
  Work recv(const Transfer& transfer, int peer) override {
    return point_to_point({.op = Op::recv, .transfer = transfer, .from_peer = peer});
  }
  Work exchange(const Transfer& transfer, int to_peer, int from_peer) override {
    return point_to_point({.op = Op::exchange, .transfer = transfer, .to_peer = to_peer, .from_peer = from_peer});
  }

  void abort() override { group_->abort(); }

  int64_t meet(int64_t entry_ns, const std::vector<int>& peers) override {
    for (int peer : peers) group_->offer_time(rank_, peer, entry_ns, "rendezvous");
    for (int peer : peers) entry_ns = std::max(entry_ns, group_->take_time(peer, rank_, "rendezvous"));
    return entry_ns;
  }

 private:
  /// The memory that a sum needs in addition to the ranks' memory. It is allocated when the verb is bound.
  struct Scratch {
    std::vector<const std::byte*> from;
    std::vector<std::byte> partial;  // for a ring in bfloat16: the sum that travels
  };

  Work collective(const Verb& verb) {
    const auto scratch = std::make_shared<Scratch>();
    scratch->from.resize(static_cast<size_t>(size()));
    if (is_rounded_each_hop(verb)) {
      const int64_t part =
          verb.op == Op::all_reduce ? part_of(verb.transfer.elems, size(), rank_).elems : verb.transfer.elems;
      scratch->partial.resize(static_cast<size_t>(std::max<int64_t>(0, bytes_of(part, verb.transfer.dtype))));
    }
    return bind(verb, rank_, size(),
                [group = group_, rank = rank_, verb, what = describe(verb), scratch](LaunchContext& context,
                                                                                     BoundState& state) {
                  run_collective(*group, rank, verb, what, *scratch, context, state);
                });
  }
  static bool is_rounded_each_hop(const Verb& verb) {
    return verb.transfer.algorithm == Algorithm::ring && verb.transfer.dtype == DType::bf16 &&
           (verb.op == Op::all_reduce || verb.op == Op::reduce_scatter);
  }
  Work point_to_point(const Verb& verb) {
    return bind(verb, rank_, size(),
                [group = group_, rank = rank_, verb, what = describe(verb)](LaunchContext& context, BoundState&) {
                  const int64_t bytes = bytes_of(verb.transfer.elems, verb.transfer.dtype);
                  if (verb.to_peer >= 0) group->offer(rank, verb.to_peer, context.at(verb.transfer.from), bytes, what);
                  if (verb.from_peer >= 0) group->take(verb.from_peer, rank, context.at(verb.transfer.to), bytes, what);
                  if (verb.to_peer >= 0) group->wait_taken(rank, verb.to_peer, what);
                });
  }

  static void note_last_entry(const ThreadGroup& group, BoundState& state) {
    int64_t last_entry = 0;
    for (const ThreadGroup::Post& post : group.posts()) last_entry = std::max(last_entry, post.entry_ns);
    state.last_entry_ns.store(last_entry, std::memory_order_release);
  }

  static void run_routed(ThreadGroup& group, int rank, const Verb& verb, const std::string& what, RouteTable& table,
                         LaunchContext& context, BoundState& state) {
    const auto* counts = context.as<const int32_t>(verb.counts);
    try {
      table.read(verb.route, rank, group.size(), counts, what);
    } catch (const CommError&) {
      group.abort();  // the counts of the others may be right, and they would wait for this rank
      throw;
    }
    group.show(rank, {verb, context.at(verb.transfer.from), context.at(verb.transfer.to), monotonic_ns(), counts},
               what);
    group.barrier(rank, what);
    check_agreement(group, rank, verb);
    check_counts(group, rank, verb, what);
    note_last_entry(group, state);
    const Route& route = verb.route;
    const int64_t row_bytes = bytes_of(route.row_elems, verb.transfer.dtype);
    std::byte* to = group.posts()[static_cast<size_t>(rank)].to;
    for (int step = 0; step < group.size(); ++step) {
      const int peer = (rank + step) % group.size();
      const std::byte* from = group.posts()[static_cast<size_t>(peer)].from;
      for (int j = 0; j < route.experts; ++j) {
        const RoutePiece& piece = route.reverse ? table.sent(peer, j) : table.held(peer, j);
        const int64_t from_row = route.reverse ? piece.owner_row : piece.source_row,
                      to_row = route.reverse ? piece.source_row : piece.owner_row;
        copy_bytes(to + to_row * row_bytes, from + from_row * row_bytes, piece.rows * row_bytes);
      }
    }
    group.barrier(rank, what);
  }

  static void check_counts(ThreadGroup& group, int rank, const Verb& verb, const std::string& what) {
    const int32_t* mine = group.posts()[static_cast<size_t>(rank)].counts;
    for (int r = 0; r < group.size(); ++r) {
      const int32_t* theirs = group.posts()[static_cast<size_t>(r)].counts;
      const int64_t all = verb.counts.size_bytes / 4, at = std::mismatch(mine, mine + all, theirs).first - mine;
      if (at == all) continue;
      const int here = mine[at], there = theirs[at];
      group.abort();
      throw CommError(
          "[comm] {}: count {} is {} on rank {}, but {} on rank {}. All members must gather the counts before they "
          "launch it.",
          what, at, here, rank, there, r);
    }
  }

  static void run_collective(ThreadGroup& group, int rank, const Verb& verb, const std::string& what, Scratch& scratch,
                             LaunchContext& context, BoundState& state) {
    group.show(rank, {verb, context.at(verb.transfer.from), context.at(verb.transfer.to), monotonic_ns(), nullptr},
               what);
    group.barrier(rank, what);
    check_agreement(group, rank, verb);
    note_last_entry(group, state);
    move_bytes(group, rank, verb, what, scratch);
    group.barrier(rank, what);
  }

  static void check_agreement(ThreadGroup& group, int rank, const Verb& verb) {
    for (int r = 0; r < group.size(); ++r) {
      const Verb& other = group.posts()[static_cast<size_t>(r)].verb;
      if (other.op == verb.op && other.transfer.elems == verb.transfer.elems &&
          other.transfer.dtype == verb.transfer.dtype && other.transfer.algorithm == verb.transfer.algorithm &&
          other.route == verb.route)
        continue;
      const std::string theirs = describe(other);
      group.abort();
      throw CommError(
          "[comm] rank {} launched {}, but rank {} launched {}. All members must launch the same verbs in the "
          "same order.",
          rank, describe(verb), r, theirs);
    }
  }

  static void move_bytes(ThreadGroup& group, int rank, const Verb& verb, const std::string& what, Scratch& scratch) {
    const int size = group.size();
    const DType dtype = verb.transfer.dtype;
    const int64_t elems = verb.transfer.elems;
    const int64_t bytes = bytes_of(elems, dtype);
    std::byte* to = group.posts()[static_cast<size_t>(rank)].to;
    switch (verb.op) {
      case Op::all_reduce: {
        const Part mine = part_of(elems, size, rank);
        sum_part(group, rank, verb, scratch, to + bytes_of(mine.begin, dtype), mine);
        group.barrier(rank, what);
        for (int step = 1; step < size; ++step) {
          const int peer = (rank + step) % size;
          const Part part = part_of(elems, size, peer);
          const int64_t begin_bytes = bytes_of(part.begin, dtype);
          copy_bytes(to + begin_bytes, group.posts()[static_cast<size_t>(peer)].to + begin_bytes,
                     bytes_of(part.elems, dtype));
        }
        return;
      }
      case Op::reduce_scatter:
        return sum_part(group, rank, verb, scratch, to, {rank * elems, elems});
      case Op::all_gather:
        for (int step = 0; step < size; ++step) {
          const int peer = (rank + step) % size;
          copy_bytes(to + peer * bytes, group.posts()[static_cast<size_t>(peer)].from, bytes);
        }
        return;
      case Op::all_to_all:
        for (int step = 0; step < size; ++step) {
          const int peer = (rank + step) % size;
          copy_bytes(to + peer * bytes, group.posts()[static_cast<size_t>(peer)].from + rank * bytes, bytes);
        }
        return;
      default:
        SLIP_ASSERT(!"a collective verb");
    }
  }

  /// direct: adds ranks 0, 1, ... and rounds once. ring: adds from the right neighbour round to this rank and rounds at
  /// each step.
  static void sum_part(ThreadGroup& group, int rank, const Verb& verb, Scratch& scratch, std::byte* to, Part part) {
    const int size = group.size();
    const DType dtype = verb.transfer.dtype;
    const int first = verb.transfer.algorithm == Algorithm::ring ? rank + 1 : 0;
    for (int step = 0; step < size; ++step)
      scratch.from[static_cast<size_t>(step)] =
          group.posts()[static_cast<size_t>((first + step) % size)].from + bytes_of(part.begin, dtype);
    if (!is_rounded_each_hop(verb)) return sum(dtype, to, scratch.from.data(), size, part.elems);
    copy_bytes(scratch.partial.data(), scratch.from[0], std::ssize(scratch.partial));
    for (int step = 1; step < size; ++step) {
      const std::byte* pair[] = {scratch.partial.data(), scratch.from[static_cast<size_t>(step)]};
      sum(dtype, scratch.partial.data(), pair, 2, part.elems);
    }
    copy_bytes(to, scratch.partial.data(), std::ssize(scratch.partial));
  }

  std::shared_ptr<ThreadGroup> group_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_world(int ranks, const CommOptions& options) {
  if (ranks < 1) throw CommError("[comm] a world of {} ranks was requested, need at least 1.", ranks);
  const auto group = std::make_shared<ThreadGroup>(ranks, options);
  std::vector<std::unique_ptr<Communicator>> world;
  for (int rank = 0; rank < ranks; ++rank) world.push_back(std::make_unique<ThreadCommunicator>(group, rank));
  return world;
}

}  // namespace slipstream::comm

// SPDX-License-Identifier: Apache-2.0
// Because the peers are absent, each verb reduces to at most one copy.

#include "comm/imitated_communicator.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "comm/host/bind.h"
#include "comm/host/route_table.h"
#include "engine/base/check.h"

namespace slipstream::comm {
namespace {

class ImitatedCommunicator final : public Communicator {
 public:
  ImitatedCommunicator(int rank, int size, DeviceCopy copy) : rank_(rank), size_(size), copy_(std::move(copy)) {
    SLIP_ASSERT(size >= 1 && rank >= 0 && rank < size);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Work all_reduce(const Transfer& t) override { return own({.op = Op::all_reduce, .transfer = t}, 0, 0); }
  Work reduce_scatter(const Transfer& t) override { return own({.op = Op::reduce_scatter, .transfer = t}, 0, rank_); }
  Work all_gather(const Transfer& t) override { return own({.op = Op::all_gather, .transfer = t}, rank_, 0); }
  Work all_to_all(const Transfer& t) override { return own({.op = Op::all_to_all, .transfer = t}, rank_, rank_); }
  Work all_to_all_v(const RoutedTransfer& t) override {
    const Verb verb = verb_of(t, size_);
    if (copy_)
      throw CommError("[comm] {}: a group with one present rank reads counts on CPUs only. Use device.kind = \"cpu\".",
                      describe(verb));
    const auto table = std::make_shared<RouteTable>();
    const auto counts = std::make_shared<std::vector<int32_t>>();
    Work work = bind(verb, rank_, size_,
                     [=, rank = rank_, size = size_, what = describe(verb)](LaunchContext& context, BoundState&) {
                       // Absent members have no rows, whatever the memory of their counts holds.
                       const size_t row = counts->size() / static_cast<size_t>(size);
                       std::copy_n(context.as<const int32_t>(verb.counts) + static_cast<size_t>(rank) * row, row,
                                   counts->data() + static_cast<size_t>(rank) * row);
                       table->read(verb.route, rank, size, counts->data(), what);
                       const int64_t row_bytes = bytes_of(verb.route.row_elems, verb.transfer.dtype);
                       for (int j = 0; j < verb.route.experts; ++j) {
                         const RoutePiece& piece = table->held(rank, j);
                         const int64_t from_row = verb.route.reverse ? piece.owner_row : piece.source_row,
                                       to_row = verb.route.reverse ? piece.source_row : piece.owner_row;
                         if (piece.rows > 0)
                           std::memcpy(context.at(verb.transfer.to) + to_row * row_bytes,
                                       context.at(verb.transfer.from) + from_row * row_bytes,
                                       static_cast<size_t>(piece.rows * row_bytes));
                       }
                     });
    table->reserve(verb.route, size_);
    counts->resize(static_cast<size_t>(size_ * size_ * verb.route.experts));
    return work;
  }
  Work send(const Transfer& t, int peer) override { return nothing({.op = Op::send, .transfer = t, .to_peer = peer}); }
  Work recv(const Transfer& t, int peer) override {
    return nothing({.op = Op::recv, .transfer = t, .from_peer = peer});
  }
  Work exchange(const Transfer& t, int to_peer, int from_peer) override {
    return nothing({.op = Op::exchange, .transfer = t, .to_peer = to_peer, .from_peer = from_peer});
  }
  void abort() override {}

 private:
  Work nothing(const Verb& verb) const {
    return bind(verb, rank_, size_, [](LaunchContext&, BoundState&) {});
  }
  /// Copies part `from_part` of `from` to part `to_part` of `to`.
  Work own(const Verb& verb, int to_part, int from_part) const {
    const Transfer t = verb.transfer;
    const int64_t part_bytes = bytes_of(t.elems, t.dtype);
    return bind(verb, rank_, size_, [=, copy = copy_](LaunchContext& context, BoundState&) {
      std::byte* to = context.at(t.to) + to_part * part_bytes;
      const std::byte* from = context.at(t.from) + from_part * part_bytes;
      if (to == from || part_bytes == 0) return;
      copy ? copy(context, to, from, part_bytes)
           : static_cast<void>(std::memcpy(to, from, static_cast<size_t>(part_bytes)));
    });
  }

  int rank_, size_;
  DeviceCopy copy_;
};

}  // namespace

std::unique_ptr<Communicator> make_imitated_communicator(int rank, int size, DeviceCopy copy) {
  return std::make_unique<ImitatedCommunicator>(rank, size, std::move(copy));
}

}  // namespace slipstream::comm

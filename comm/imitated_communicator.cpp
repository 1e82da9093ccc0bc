// SPDX-License-Identifier: Apache-2.0
// Because the peers are absent, each verb reduces to at most one copy.

#include "comm/imitated_communicator.h"

#include <cstring>

#include "comm/host/bind.h"
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

// SPDX-License-Identifier: Apache-2.0
// The same checks and accesses as the real communicators, without transfers.

#include "comm/sim/sim_communicator.h"

#include "comm/host/bind.h"
#include "engine/base/check.h"

namespace slipstream::comm {
namespace {

class SimCommunicator final : public Communicator {
 public:
  SimCommunicator(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Work all_reduce(const Transfer& transfer) override { return charge({.op = Op::all_reduce, .transfer = transfer}); }
  Work reduce_scatter(const Transfer& transfer) override {
    return charge({.op = Op::reduce_scatter, .transfer = transfer});
  }
  Work all_gather(const Transfer& transfer) override { return charge({.op = Op::all_gather, .transfer = transfer}); }
  Work all_to_all(const Transfer& transfer) override { return charge({.op = Op::all_to_all, .transfer = transfer}); }
  Work all_to_all_v(const RoutedTransfer& transfer) override { return charge(verb_of(transfer, size_)); }
  Work send(const Transfer& transfer, int peer) override {
    return charge({.op = Op::send, .transfer = transfer, .to_peer = peer});
  }
  Work recv(const Transfer& transfer, int peer) override {
    return charge({.op = Op::recv, .transfer = transfer, .from_peer = peer});
  }
  Work exchange(const Transfer& transfer, int to_peer, int from_peer) override {
    return charge({.op = Op::exchange, .transfer = transfer, .to_peer = to_peer, .from_peer = from_peer});
  }
  void abort() override {}

 private:
  Work charge(const Verb& verb) const {
    return bind(verb, rank_, size_, [what = describe(verb)](LaunchContext&, BoundState&) {
      throw InternalError("[sim] {} was run, but simulated works only have a cost.", what);
    });
  }
  int rank_, size_;
};

}  // namespace

std::unique_ptr<Communicator> make_sim_communicator(int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size)
    throw CommError("[sim] rank {} of a group of {} was requested, need a rank from 0 to size - 1.", rank, size);
  return std::make_unique<SimCommunicator>(rank, size);
}

}  // namespace slipstream::comm

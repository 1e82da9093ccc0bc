// SPDX-License-Identifier: Apache-2.0
// Every work learns the last entry time, joins the port from that time, moves the bytes, and waits until the port is
// done. On a CPU the stream's thread sleeps. On a GPU the port writes its progress into a word, and a kernel waits for
// it, which has one thread or occupies multiprocessors.

#include "comm/emulate/emulate.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>

#include "comm/host/bind.h"
#include "comm/host/route_table.h"
#include "engine/base/check.h"
#include "engine/base/delay_point.h"
#include "engine/device/clock.h"
#include "engine/device/link_note.h"

namespace slipstream::comm {
namespace {

// A larger difference of entry times comes from clocks of different machines, not from a late rank.
constexpr int64_t kSameClockNs = int64_t{3600} * 1000000000;
// The pieces of a copy. They are large enough to be worth the kernel that each of them waits for.
constexpr int64_t kPieceBytes = int64_t{1} << 20, kMostPieces = 16;

/// A delay that a test requests: "link" delays the first task of the step on any channel, "link/OP" the first task of
/// that op.
int64_t asked_delay_ns(Op op, int64_t step) {
  if (!delays_asked()) return 0;
  return take_delay_ns("link", step) + take_delay_ns(std::string("link/") + name_of(op), step);
}

class EmulatedCommunicator final : public Communicator {
 public:
  EmulatedCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<LinkPort> port, const LinkTraffic& traffic)
      : inner_(std::move(inner)), port_(std::move(port)), traffic_(traffic) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Work all_reduce(const Transfer& transfer) override {
    return wrap({.op = Op::all_reduce, .transfer = transfer}, inner_->all_reduce(transfer));
  }
  Work reduce_scatter(const Transfer& transfer) override {
    return wrap({.op = Op::reduce_scatter, .transfer = transfer}, inner_->reduce_scatter(transfer));
  }
  Work all_gather(const Transfer& transfer) override {
    return wrap({.op = Op::all_gather, .transfer = transfer}, inner_->all_gather(transfer));
  }
  Work all_to_all(const Transfer& transfer) override {
    return wrap({.op = Op::all_to_all, .transfer = transfer}, inner_->all_to_all(transfer));
  }
  Work all_to_all_v(const RoutedTransfer& transfer) override {
    return wrap_routed(verb_of(transfer, size()), inner_->all_to_all_v(transfer));
  }
  Work send(const Transfer& transfer, int peer) override {
    return wrap({.op = Op::send, .transfer = transfer, .to_peer = peer}, inner_->send(transfer, peer));
  }
  Work recv(const Transfer& transfer, int peer) override {
    return wrap({.op = Op::recv, .transfer = transfer, .from_peer = peer}, inner_->recv(transfer, peer));
  }
  Work exchange(const Transfer& transfer, int to_peer, int from_peer) override {
    return wrap({.op = Op::exchange, .transfer = transfer, .to_peer = to_peer, .from_peer = from_peer},
                inner_->exchange(transfer, to_peer, from_peer));
  }
  void check_for_errors() override { inner_->check_for_errors(); }
  std::string register_memory(std::byte* base, int64_t size_bytes) override {
    return inner_->register_memory(base, size_bytes);
  }
  void forget_memory() override { inner_->forget_memory(); }
  std::optional<int64_t> sent_bytes() const override { return inner_->sent_bytes(); }
  void abort() override {
    aborted_->store(true);
    port_->wake_all();  // first, because the inner one may wait for a thread that sleeps on the port
    inner_->abort();
  }

 private:
  Work wrap(const Verb& verb, Work inner) {
    const Transfer& transfer = verb.transfer;
    const WireCost cost = wire_cost(verb.op, transfer.algorithm, size(), transfer.elems, transfer.dtype, port_->link());
    Rendezvous* rendezvous = dynamic_cast<Rendezvous*>(inner_.get());
    // The state of one launch: launches of a work never overlap.
    struct Flight {
      int64_t entry_ns = 0;
      LinkPort::Ticket ticket;
    };
    // The bytes of this rank that the traffic moves.
    const bool reads = from_bytes(verb, size()) > 0;
    const Slice touched = reads ? transfer.from : transfer.to;
    const int64_t touched_bytes = reads ? from_bytes(verb, size()) : to_bytes(verb, size());
    const LinkTraffic traffic = peers_of(verb, rank(), size()).empty() ? LinkTraffic{} : traffic_;
    uint32_t* flag = traffic.make_flag ? traffic.make_flag() : nullptr;
    // The copy has pieces that follow the link's progress, because a copy engine at full speed would finish long before
    // the link.
    const int64_t pieces =
        traffic.form == LinkForm::copies ? std::clamp<int64_t>(cost.bytes / kPieceBytes, 1, kMostPieces) : 1;
    auto body = [move = std::move(inner.fn), port = port_, sends = verb.op != Op::recv, receives = verb.op != Op::send,
                 op = verb.op, aborted = aborted_, cost, rendezvous, what = describe(verb), traffic, touched,
                 touched_bytes, flag, pieces, peers = peers_of(verb, rank(), size()),
                 flight = std::make_shared<Flight>()](LaunchContext& context, BoundState& state) {
      const int64_t step = context.frame != nullptr ? context.frame->step : 0;
      context.on_host([=, &state] {
        flight->entry_ns = monotonic_ns();
        int64_t last_entry_ns = rendezvous ? rendezvous->meet(flight->entry_ns, peers) : flight->entry_ns;
        if (last_entry_ns - flight->entry_ns > kSameClockNs) last_entry_ns = flight->entry_ns;
        state.last_entry_ns.store(last_entry_ns, std::memory_order_release);
        if (flag) std::atomic_ref(*flag).store(0);
        if (!peers.empty())
          flight->ticket =
              port->begin(last_entry_ns, cost.latency_ns + asked_delay_ns(op, step), cost.bytes, sends, receives);
        for (int64_t p = 1; flag && p <= pieces; ++p)
          port->when_done(
              flight->ticket, [flag, p] { std::atomic_ref(*flag).store(static_cast<uint32_t>(p)); },
              p < pieces ? cost.bytes - p * (cost.bytes / pieces) : 0);
      });
      if (peers.empty()) return move(context);
      try {
        move(context);
      } catch (...) {
        if (context.kind == DeviceKind::cpu && !flag) port->leave(flight->ticket);
        throw;
      }
      if (traffic.form == LinkForm::blocks)
        return traffic.hold(context, context.at(touched), touched_bytes, cost.wire_ns, flag);
      for (int64_t p = 0; traffic.form == LinkForm::copies && p < pieces; ++p) {
        if (p > 0) traffic.await(context, flag, static_cast<uint32_t>(p));
        traffic.copy(context, context.at(touched), std::min(cost.bytes / pieces, touched_bytes));
      }
      if (flag) return traffic.await(context, flag, static_cast<uint32_t>(pieces));
      context.on_host([=, &state] {
        const std::optional<int64_t> end_ns = port->wait(flight->ticket, [&] { return aborted->load(); });
        if (!end_ns) throw aborted_on_link(what, flight->entry_ns);
        note_link_ns(*end_ns - state.last_entry_ns.load());
      });
    };
    return bind(verb, rank(), size(), std::move(body));
  }

  /// The counts tell the bytes of both directions when the work runs. Each direction is a transfer of its own, because
  /// a rank may send much and receive little.
  Work wrap_routed(const Verb& verb, Work inner) {
    if (traffic_.make_flag)
      throw CommError(
          "[comm] {}: the emulated link of a GPU cannot read counts from device memory. Use device.kind = \"cpu\", or "
          "no "
          "emulated link.",
          describe(verb));
    Rendezvous* rendezvous = dynamic_cast<Rendezvous*>(inner_.get());
    const auto table = std::make_shared<RouteTable>();
    auto body = [move = std::move(inner.fn), port = port_, aborted = aborted_, rendezvous, verb, table,
                 what = describe(verb), rank = rank(), size = size(),
                 peers = peers_of(verb, rank(), size())](LaunchContext& context, BoundState& state) {
      const int64_t entry_ns = monotonic_ns();
      int64_t last_entry_ns = rendezvous ? rendezvous->meet(entry_ns, peers) : entry_ns;
      if (last_entry_ns - entry_ns > kSameClockNs) last_entry_ns = entry_ns;
      state.last_entry_ns.store(last_entry_ns, std::memory_order_release);
      if (peers.empty()) return move(context);
      table->read(verb.route, rank, size, context.as<const int32_t>(verb.counts), what);
      const RoutedBytes bytes = routed_bytes(*table, verb.route, verb.transfer.dtype, rank, size);
      const int64_t delay_ns = asked_delay_ns(verb.op, context.frame != nullptr ? context.frame->step : 0);
      const auto latency_ns = [&](int64_t moved) { return (moved > 0 ? port->link().latency_ns : 0) + delay_ns; };
      const LinkPort::Ticket out = port->begin(last_entry_ns, latency_ns(bytes.sent), bytes.sent, true, false),
                             in = port->begin(last_entry_ns, latency_ns(bytes.received), bytes.received, false, true);
      const auto is_aborted = [&] { return aborted->load(); };
      try {
        move(context);
      } catch (...) {
        port->leave(out);
        port->leave(in);
        throw;
      }
      const std::optional<int64_t> sent_ns = port->wait(out, is_aborted), received_ns = port->wait(in, is_aborted);
      if (!sent_ns || !received_ns) throw aborted_on_link(what, entry_ns);
      note_link_ns(std::max(*sent_ns, *received_ns) - last_entry_ns);
    };
    Work work = bind(verb, rank(), size(), std::move(body));
    table->reserve(verb.route, size());
    return work;
  }

  static CommError aborted_on_link(const std::string& what, int64_t entry_ns) {
    return CommError("[comm] {}: aborted on the emulated link after {:.3f} s. Look for the first error of the run.",
                     what, static_cast<double>(monotonic_ns() - entry_ns) * 1e-9);
  }

  std::unique_ptr<Communicator> inner_;
  std::shared_ptr<LinkPort> port_;
  LinkTraffic traffic_;
  std::shared_ptr<std::atomic<bool>> aborted_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace

std::unique_ptr<Communicator> emulate(std::unique_ptr<Communicator> inner, std::shared_ptr<LinkPort> port,
                                      const LinkTraffic& traffic) {
  return std::make_unique<EmulatedCommunicator>(std::move(inner), std::move(port), traffic);
}

}  // namespace slipstream::comm

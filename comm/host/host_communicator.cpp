// SPDX-License-Identifier: Apache-2.0
// Binding of scripts, and the loop that drives them.

#include "comm/host/host_communicator.h"

#include <algorithm>
#include <atomic>

#include "engine/base/check.h"
#include "engine/base/fail_point.h"
#include "engine/device/clock.h"
#include "engine/device/link_note.h"

namespace slipstream::comm {
namespace {

// These polls take less time than a hand-over between two cores. After them, a rank sleeps until a peer rings.
constexpr int kPolls = 16;
// The interval at which a sleeping rank checks for an abort and for its timeout.
constexpr int64_t kLongestSleepNs = 20'000'000;

void check_alive(const HostTransport& transport, const std::string& what, int64_t begin_ns) {
  if (!transport.is_aborted()) return;
  const double elapsed = static_cast<double>(monotonic_ns() - begin_ns) * 1e-9;
  throw CommError("[comm] {}: aborted on rank {} after {:.3f} s{}. Look for the first error of the run.", what,
                  transport.rank(), elapsed,
                  transport.outstanding() > 0 ? " waiting for " + transport.waiting_for() : "");
}

void move_all(HostTransport& transport, Poster& post, Script* script, const std::string& what,
              const CommOptions& options) {
  const int64_t begin_ns = monotonic_ns();
  const int64_t timeout_ns = static_cast<int64_t>(options.timeout_seconds * 1e9);
  int64_t moved_ns = begin_ns;
  int idle_polls = 0;
  uint64_t tokens[32];
  while (transport.outstanding() > 0) {
    check_alive(transport, what, begin_ns);
    const int done = transport.poll(tokens, 32);
    for (int i = 0; i < done && script; ++i) {
      const Arrival arrival = Poster::arrival(tokens[i]);
      post.completed(arrival);
      script->arrived(post, arrival);
    }
    if (done > 0) {
      idle_polls = 0;
      moved_ns = monotonic_ns();
      continue;
    }
    if (++idle_polls <= kPolls) continue;
    transport.wait(std::min(kLongestSleepNs, timeout_ns));
    if (const int64_t now_ns = monotonic_ns(); now_ns - moved_ns > timeout_ns) {
      const CommError late(
          "[comm] {}: rank {} waited {:.3f} s for {}, {:.3f} s after it began. Check the output of that rank, or "
          "raise the timeout ({} s).",
          what, transport.rank(), static_cast<double>(now_ns - moved_ns) * 1e-9, transport.waiting_for(),
          static_cast<double>(now_ns - begin_ns) * 1e-9, options.timeout_seconds);
      if (options.late) options.late(late.what());
      transport.abort();
      throw late;
    }
  }
}

/// A group of one sends no messages; it can only be aborted.
class SelfTransport final : public HostTransport {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void send(int, int, const void*, int64_t, uint64_t) override { SLIP_ASSERT(!"a group of one sends nothing"); }
  void recv(int, int, void*, int64_t, uint64_t) override { SLIP_ASSERT(!"a group of one receives nothing"); }
  int poll(uint64_t*, int) override { return 0; }
  void wait(int64_t) override {}
  int outstanding() const override { return 0; }
  std::string waiting_for() const override { return "no rank"; }
  void reserve(int) override {}
  void cancel() override {}
  void abort() override { aborted_ = true; }
  bool is_aborted() const override { return aborted_; }

 private:
  std::atomic<bool> aborted_{false};
};

/// Blocks until no message is outstanding.
void drive(HostTransport& transport, Poster& post, Script* script, const std::string& what,
           const CommOptions& options) {
  try {
    move_all(transport, post, script, what, options);
  } catch (...) {
    transport.cancel();
    throw;
  }
}

}  // namespace

int Poster::send_whole(int peer, const std::byte* data, int64_t size_bytes, int index) {
  for (int64_t begin = 0; begin < size_bytes; begin += kLargestMessageBytes)
    send(Phase::whole, peer, index++, data + begin, std::min(kLargestMessageBytes, size_bytes - begin));
  return index;
}

int Poster::recv_whole(int peer, std::byte* data, int64_t size_bytes, int index) {
  for (int64_t begin = 0; begin < size_bytes; begin += kLargestMessageBytes)
    recv(Phase::whole, peer, index++, data + begin, std::min(kLargestMessageBytes, size_bytes - begin));
  return index;
}

std::unique_ptr<Script> make_script(const Verb& verb, int rank, int size) {
  const bool ring = verb.transfer.algorithm == Algorithm::ring;
  switch (verb.op) {
    case Op::all_reduce:
    case Op::reduce_scatter:
      return ring ? make_ring(verb, rank, size) : make_direct_reduce(verb, rank, size);
    case Op::all_gather:
      return ring ? make_ring(verb, rank, size) : make_direct_moves(verb, rank, size);
    default:
      return make_direct_moves(verb, rank, size);
  }
}

std::unique_ptr<HostTransport> make_self_transport() { return std::make_unique<SelfTransport>(); }

HostCommunicator::HostCommunicator(std::shared_ptr<HostTransport> transport, const CommOptions& options)
    : transport_(std::move(transport)),
      options_(options),
      times_(static_cast<size_t>(size()) + 1),
      link_clock_(size()) {
  transport_->reserve(2 * size());
}

template <typename Start>
void HostCommunicator::run(Script& script, const std::string& what, Start start) {
  Poster post(*transport_, &link_clock_);
  start(post);
  fail_point("collective", what);
  drive(*transport_, post, &script, what, options_);
  sent_bytes_.fetch_add(post.sent_bytes(), std::memory_order_relaxed);
  note_link_ns(link_clock_.total_ns());
}

Work HostCommunicator::bind_verb(const Verb& verb) {
  struct Bound {
    std::unique_ptr<Script> script;
  };
  const auto bound = std::make_shared<Bound>();
  Work work =
      bind(verb, rank(), size(),
           [this, transport = transport_, bound, verb, what = describe(verb)](LaunchContext& context, BoundState&) {
             check_alive(*transport, what, monotonic_ns());
             run(*bound->script, what, [&](Poster& post) {
               bound->script->start(post, verb.op != Op::recv ? context.at(verb.transfer.from) : nullptr,
                                    verb.op != Op::send ? context.at(verb.transfer.to) : nullptr, staging_.data());
             });
           });
  bound->script = make_script(verb, rank(), size());  // after the checks of bind
  staging_.resize(std::max(staging_.size(), static_cast<size_t>(bound->script->staging_bytes())));
  transport_->reserve(bound->script->messages());
  return work;
}

Work HostCommunicator::all_reduce(const Transfer& transfer) {
  return bind_verb({.op = Op::all_reduce, .transfer = transfer});
}
Work HostCommunicator::reduce_scatter(const Transfer& transfer) {
  return bind_verb({.op = Op::reduce_scatter, .transfer = transfer});
}
Work HostCommunicator::all_gather(const Transfer& transfer) {
  return bind_verb({.op = Op::all_gather, .transfer = transfer});
}
Work HostCommunicator::all_to_all(const Transfer& transfer) {
  return bind_verb({.op = Op::all_to_all, .transfer = transfer});
}
Work HostCommunicator::all_to_all_v(const RoutedTransfer& transfer) {
  const Verb verb = verb_of(transfer, size());
  const auto script = std::make_shared<std::unique_ptr<RoutedScript>>();
  Work work =
      bind(verb, rank(), size(),
           [this, transport = transport_, script, verb, what = describe(verb)](LaunchContext& context, BoundState&) {
             check_alive(*transport, what, monotonic_ns());
             routes_.read(verb.route, rank(), size(), context.as<const int32_t>(verb.counts), what);
             (*script)->route(routes_);
             run(**script, what, [&](Poster& post) {
               (*script)->start(post, context.at(verb.transfer.from), context.at(verb.transfer.to), nullptr);
             });
           });
  *script = make_routed_moves(verb, rank(), size());  // after the checks of bind
  routes_.reserve(verb.route, size());
  transport_->reserve((*script)->messages());
  return work;
}
Work HostCommunicator::send(const Transfer& transfer, int peer) {
  return bind_verb({.op = Op::send, .transfer = transfer, .to_peer = peer});
}
Work HostCommunicator::recv(const Transfer& transfer, int peer) {
  return bind_verb({.op = Op::recv, .transfer = transfer, .from_peer = peer});
}
Work HostCommunicator::exchange(const Transfer& transfer, int to_peer, int from_peer) {
  return bind_verb({.op = Op::exchange, .transfer = transfer, .to_peer = to_peer, .from_peer = from_peer});
}

int64_t HostCommunicator::meet(int64_t entry_ns, const std::vector<int>& peers) {
  check_alive(*transport_, "rendezvous", monotonic_ns());
  Poster post(*transport_);
  times_.back() = entry_ns;
  for (size_t i = 0; i < peers.size(); ++i)
    post.recv(Phase::rendezvous, peers[i], 0, reinterpret_cast<std::byte*>(&times_[i]), sizeof(int64_t));
  for (int peer : peers)
    post.send(Phase::rendezvous, peer, 0, reinterpret_cast<std::byte*>(&times_.back()), sizeof(int64_t));
  drive(*transport_, post, nullptr, "rendezvous", options_);
  for (size_t i = 0; i < peers.size(); ++i) entry_ns = std::max(entry_ns, times_[i]);
  return entry_ns;
}

}  // namespace slipstream::comm

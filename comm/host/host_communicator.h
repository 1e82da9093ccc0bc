// SPDX-License-Identifier: Apache-2.0
#pragma once
// All verbs on top of a HostTransport. The stream's thread drives the messages: it polls, then yields, then sleeps for
// growing times, so that it does not take a core from compute.

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/host/bind.h"
#include "comm/host/link_clock.h"
#include "comm/host/script.h"
#include "comm/host/transport.h"

namespace slipstream::comm {

/// `direct` adds in rank order, `ring` in ring order (see make_ring). abort reaches this rank only: its own works
/// throw, and the works of its peers time out, or end when this process ends the run.
class HostCommunicator final : public Communicator, public Rendezvous {
 public:
  HostCommunicator(std::shared_ptr<HostTransport> transport, const CommOptions& options);

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  Work all_reduce(const Transfer& transfer) override;
  Work reduce_scatter(const Transfer& transfer) override;
  Work all_gather(const Transfer& transfer) override;
  Work all_to_all(const Transfer& transfer) override;
  Work all_to_all_v(const RoutedTransfer& transfer) override;
  Work send(const Transfer& transfer, int peer) override;
  Work recv(const Transfer& transfer, int peer) override;
  Work exchange(const Transfer& transfer, int to_peer, int from_peer) override;
  void abort() override { transport_->abort(); }
  std::optional<int64_t> sent_bytes() const override { return sent_bytes_.load(std::memory_order_relaxed); }

  int64_t meet(int64_t entry_ns, const std::vector<int>& peers) override;

 private:
  Work bind_verb(const Verb& verb);
  /// Runs a script whose messages `start` posts.
  template <typename Start>
  void run(Script& script, const std::string& what, Start start);

  std::shared_ptr<HostTransport> transport_;
  CommOptions options_;
  std::vector<std::byte>
      staging_;        // of the running verb; all verbs are bound before the first one runs, so its size is final
  RouteTable routes_;  // of the running all_to_all_v, like staging_
  std::atomic<int64_t> sent_bytes_{0};
  std::vector<int64_t> times_;  // the entry times of a rendezvous: one per peer, and this rank's own last
  LinkClock link_clock_;        // of the running verb
};

/// The transport of a group of one.
std::unique_ptr<HostTransport> make_self_transport();

}  // namespace slipstream::comm

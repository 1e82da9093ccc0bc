// SPDX-License-Identifier: Apache-2.0
#pragma once
// The verbs on one NCCL communicator that never blocks: calls that NCCL has not finished are polled, with a time limit.
//
// NCCL allows one thread at a time in a communicator, and the mutex ensures that. abort() removes the communicator
// first, so that no other thread can use it.

#include <nccl.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/host/bind.h"
#include "comm/nccl/nccl.h"

namespace slipstream::comm {

class NcclCommunicator final : public Communicator {
 public:
  /// Takes over `comm`, which is connected.
  NcclCommunicator(ncclComm_t comm, const NcclOptions& options);
  /// Blocks until NCCL has released the communicator, but at most for the timeout. The caller must have waited for all
  /// works.
  ~NcclCommunicator() override;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Work all_reduce(const Transfer& transfer) override;
  Work reduce_scatter(const Transfer& transfer) override;
  Work all_gather(const Transfer& transfer) override;
  Work all_to_all(const Transfer& transfer) override;
  /// Throws: CommError, because NCCL takes the sizes of messages from the host, which would have to wait for
  /// the counts.
  Work all_to_all_v(const RoutedTransfer& transfer) override;
  Work send(const Transfer& transfer, int peer) override;
  Work recv(const Transfer& transfer, int peer) override;
  Work exchange(const Transfer& transfer, int to_peer, int from_peer) override;
  void abort() override;

  void check_for_errors() override;
  std::string register_memory(std::byte* base, int64_t size_bytes) override;
  void forget_memory() override;

 private:
  /// The caller must hold mutex_, and the connection must exist.
  void deregister_all();
  Work bind_verb(const Verb& verb);
  void run(const Verb& verb, LaunchContext& context);
  ncclResult_t enqueue(const Verb& verb, LaunchContext& context);
  /// Waits while `result` is "in progress". Throws: CommError on every result other than success, and on timeout.
  void finish(std::unique_lock<std::mutex>& lock, ncclResult_t result, const std::string& what);
  void require_alive(const std::string& what) const;

  std::mutex mutex_;
  ncclComm_t comm_;                // mutex_ protects it; null after abort
  std::vector<void*> registered_;  // mutex_ protects it
  std::vector<void*> windows_;     // mutex_ protects it; memory that copy engines reach
  NcclOptions options_;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace slipstream::comm

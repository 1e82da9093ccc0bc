// SPDX-License-Identifier: Apache-2.0
// A group of one sends no messages; it can only be aborted.

#include "comm/host/self_transport.h"

#include <atomic>

#include "engine/base/check.h"

namespace slipstream::comm {
namespace {

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

}  // namespace

std::unique_ptr<HostTransport> make_self_transport() { return std::make_unique<SelfTransport>(); }

}  // namespace slipstream::comm

// SPDX-License-Identifier: Apache-2.0
#pragma once
// One full-duplex port that several transfers share: who is how far, as exact arithmetic on times.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/link.h"

namespace slipstream::comm {

/// Processor sharing: n transfers in flight in one direction get 1/n of its bandwidth each, one that needs both the
/// less of the two. A transfer of b bytes that begins at time t first lets its latency pass (which takes no bandwidth),
/// then sends. Pure bookkeeping, no clock of its own; not locked.
class PortSchedule {
 public:
  struct Transfer {
    int64_t sends_from_ns = 0;  // begin + latency
    double left_bytes = 0;
    bool sends = true, receives = true;
    bool done = false;
    int64_t end_ns = 0;  // when done
  };
  using Ticket = std::list<Transfer>::iterator;

  explicit PortSchedule(double bytes_per_second) : bytes_per_ns_(bytes_per_second * 1e-9) {}

  /// `begin_ns` may lie in the past, but what the port has already given to others is not taken back.
  Ticket add(int64_t begin_ns, int64_t latency_ns, int64_t bytes, bool sends = true, bool receives = true);
  void remove(Ticket ticket);
  /// Moves all transfers on to `now_ns` (never back).
  void advance(int64_t now_ns);
  /// When `ticket` has only `left_bytes` to send if nobody else joins; 0: when it ends.
  int64_t predicted_end_ns(Ticket ticket, double left_bytes = 0) const;

 private:
  double bytes_per_ns_;  // 0: infinite
  int64_t now_ns_ = INT64_MIN;
  int64_t busy_until_ns_ = INT64_MIN;  // of the transfers that are gone
  std::list<Transfer> transfers_;
};

/// The port of one rank, shared by its channels' threads. Waiting costs no core.
class LinkPort {
 public:
  explicit LinkPort(const Link& link) : link_(link), schedule_(link.bytes_per_second) {}
  ~LinkPort();
  LinkPort(const LinkPort&) = delete;
  LinkPort& operator=(const LinkPort&) = delete;
  const Link& link() const { return link_; }

  using Ticket = PortSchedule::Ticket;
  /// Joins the port as of `begin_ns`, when the last member entered.
  Ticket begin(int64_t begin_ns, int64_t latency_ns, int64_t bytes, bool sends = true, bool receives = true);
  /// Blocks. Until the transfer's last byte has left; false if `cancelled` became true (see wake_all).
  template <typename Cancelled>
  bool wait(Ticket ticket, Cancelled cancelled) {
    std::unique_lock lock(mutex_);
    const bool done = sleep_until(
        lock, ticket, [](void* c) { return (*static_cast<Cancelled*>(c))(); }, &cancelled);
    schedule_.remove(ticket);
    ++membership_;
    lock.unlock();
    changed_.notify_all();
    return done;
  }
  /// Instead of wait: `done` is called from a thread of the port when the last byte has left, or at once after
  /// wake_all. With `left_bytes`, before that one, when it has only so many to send; the transfer stays.
  void when_done(Ticket ticket, std::function<void()> done, int64_t left_bytes = 0);
  /// The transfer failed elsewhere: leaves the port.
  void leave(Ticket ticket);
  void wake_all();

 private:
  bool sleep_until(std::unique_lock<std::mutex>& lock, Ticket ticket, bool (*cancelled)(void*), void* argument);
  void release();
  Link link_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t membership_ = 0;
  PortSchedule schedule_;
  struct Release {
    Ticket ticket;
    std::function<void()> done;
    double left_bytes = 0;
  };
  std::list<Release> released_;  // under mutex_, as all below
  bool ends_ = false, woken_ = false;
  std::thread releaser_;  // from the first when_done on
};

}  // namespace slipstream::comm

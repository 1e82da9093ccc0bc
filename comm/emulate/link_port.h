// SPDX-License-Identifier: Apache-2.0
#pragma once
// The progress of several transfers that share one full-duplex port, as exact arithmetic on times.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "comm/link.h"

namespace slipstream::comm {

/// Processor sharing: n transfers in flight in one direction get 1/n of its bandwidth each; a transfer in both
/// directions gets the smaller of its two rates. A transfer of b bytes first spends its latency, which takes no
/// bandwidth, then sends. Pure bookkeeping without a clock of its own; not locked.
class PortSchedule {
 public:
  struct Transfer {
    int64_t sends_from_ns = 0;  // begin + latency
    double left_bytes = 0;
    bool sends = true, receives = true;
    bool done = false;
    int64_t end_ns = 0;  // the time of completion
  };
  using Ticket = std::list<Transfer>::iterator;

  explicit PortSchedule(double bytes_per_second) : bytes_per_ns_(bytes_per_second * 1e-9) {}

  /// `begin_ns` may be in the past, but bandwidth that other transfers have already used stays used.
  Ticket add(int64_t begin_ns, int64_t latency_ns, int64_t bytes, bool sends = true, bool receives = true);
  void remove(Ticket ticket);
  /// Moves all transfers forward to `now_ns`, never back.
  void advance(int64_t now_ns);
  /// Time at which `ticket` has `left_bytes` left to send if no other transfer joins; with 0, its end.
  int64_t predicted_end_ns(Ticket ticket, double left_bytes = 0) const;

 private:
  double bytes_per_ns_;  // 0: infinite
  int64_t now_ns_ = INT64_MIN;
  int64_t busy_until_ns_ = INT64_MIN;  // the latest end of the transfers that have left
  std::list<Transfer> transfers_;
};

/// The port of one rank, shared by its channels' threads. Waiting uses no core.
class LinkPort {
 public:
  explicit LinkPort(const Link& link) : link_(link), schedule_(link.bytes_per_second) {}
  ~LinkPort();
  LinkPort(const LinkPort&) = delete;
  LinkPort& operator=(const LinkPort&) = delete;
  const Link& link() const { return link_; }

  using Ticket = PortSchedule::Ticket;
  /// Joins the port from `begin_ns`, the time at which the last member entered.
  Ticket begin(int64_t begin_ns, int64_t latency_ns, int64_t bytes, bool sends = true, bool receives = true);
  /// Blocks until the transfer's last byte has left. Returns the time at which the link sent it, or nothing if
  /// `cancelled` became true (see wake_all).
  template <typename Cancelled>
  std::optional<int64_t> wait(Ticket ticket, Cancelled cancelled) {
    std::unique_lock lock(mutex_);
    const bool done = sleep_until(
        lock, ticket, [](void* c) { return (*static_cast<Cancelled*>(c))(); }, &cancelled);
    const std::optional<int64_t> end_ns = done ? std::optional(ticket->end_ns) : std::nullopt;
    schedule_.remove(ticket);
    ++membership_;
    lock.unlock();
    changed_.notify_all();
    return end_ns;
  }
  /// The alternative to wait: a thread of the port calls `done` when the last byte has left, or at once after wake_all.
  /// With `left_bytes` it calls `done` earlier, when that many bytes are left to send; the transfer then stays on the
  /// port.
  void when_done(Ticket ticket, std::function<void()> done, int64_t left_bytes = 0);
  /// Removes a transfer that failed elsewhere.
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
  std::list<Release> released_;  // mutex_ protects this and all below
  bool ends_ = false, woken_ = false;
  std::thread releaser_;  // runs from the first when_done on
};

}  // namespace slipstream::comm

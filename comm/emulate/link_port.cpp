// SPDX-License-Identifier: Apache-2.0
// All rates are constant between two moments at which a transfer starts to send or ends, so time advances from one such
// moment to the next.

#include "comm/emulate/link_port.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "engine/base/parallel.h"
#include "engine/device/clock.h"

namespace slipstream::comm {
namespace {

constexpr int64_t kNever = INT64_MAX;
constexpr double kNothingBytes = 1e-3;

int64_t ceil_ns(double ns) { return static_cast<int64_t>(std::ceil(ns)); }

/// Pure, except that it advances `transfers` from `from_ns` to `to_ns`.
void share(std::vector<PortSchedule::Transfer*>& transfers, double bytes_per_ns, int64_t from_ns, int64_t to_ns) {
  while (true) {
    int64_t next_ns = to_ns;
    int out = 0, in = 0;  // the transfers in flight in each direction
    for (PortSchedule::Transfer* transfer : transfers) {
      if (transfer->done) continue;
      if (transfer->sends_from_ns <= from_ns) {
        if (transfer->left_bytes <= kNothingBytes || bytes_per_ns <= 0) {
          transfer->done = true;
          transfer->end_ns = std::max(from_ns, transfer->sends_from_ns);
          continue;
        }
        out += transfer->sends;
        in += transfer->receives;
      } else {
        next_ns = std::min(next_ns, transfer->sends_from_ns);
      }
    }
    if (from_ns >= to_ns) return;
    const auto moves = [&](const PortSchedule::Transfer& t) { return !t.done && t.sends_from_ns <= from_ns; };
    const auto sharers = [&](const PortSchedule::Transfer& t) {
      return std::max({t.sends ? out : 0, t.receives ? in : 0, 1});
    };
    if (out + in > 0) {
      double first_end = static_cast<double>(kNever);
      for (const PortSchedule::Transfer* transfer : transfers)
        if (moves(*transfer)) first_end = std::min(first_end, transfer->left_bytes * sharers(*transfer) / bytes_per_ns);
      if (first_end < static_cast<double>(next_ns - from_ns))
        next_ns = from_ns + std::max<int64_t>(1, ceil_ns(first_end));
      for (PortSchedule::Transfer* transfer : transfers)
        if (moves(*transfer))
          transfer->left_bytes -= static_cast<double>(next_ns - from_ns) * bytes_per_ns / sharers(*transfer);
    } else if (next_ns == kNever) {
      return;
    }
    from_ns = next_ns;
  }
}

}  // namespace

PortSchedule::Ticket PortSchedule::add(int64_t begin_ns, int64_t latency_ns, int64_t bytes, bool sends, bool receives) {
  bool busy = false;
  int64_t given_until_ns = busy_until_ns_;
  for (const Transfer& transfer : transfers_) {
    busy = busy || !transfer.done;
    if (transfer.done) given_until_ns = std::max(given_until_ns, transfer.end_ns);
  }
  if (busy)
    given_until_ns = now_ns_;
  else
    now_ns_ = std::max(begin_ns, given_until_ns);  // nothing has moved since then, whatever the value of the clock
  const int64_t sends_from_ns = std::max(begin_ns + latency_ns, given_until_ns);
  return transfers_.insert(transfers_.end(), Transfer{.sends_from_ns = sends_from_ns,
                                                      .left_bytes = static_cast<double>(bytes),
                                                      .sends = sends,
                                                      .receives = receives});
}

void PortSchedule::remove(Ticket ticket) {
  if (ticket->done) busy_until_ns_ = std::max(busy_until_ns_, ticket->end_ns);
  transfers_.erase(ticket);
}

void PortSchedule::advance(int64_t now_ns) {
  if (now_ns <= now_ns_) return;
  std::vector<Transfer*> all;
  for (Transfer& transfer : transfers_) all.push_back(&transfer);
  if (now_ns_ != INT64_MIN) share(all, bytes_per_ns_, now_ns_, now_ns);
  now_ns_ = now_ns;
}

int64_t PortSchedule::predicted_end_ns(Ticket ticket, double left_bytes) const {
  std::vector<Transfer> copies(transfers_.begin(), transfers_.end());
  copies[static_cast<size_t>(std::distance(std::list<Transfer>::const_iterator(transfers_.begin()),
                                           std::list<Transfer>::const_iterator(ticket)))]
      .left_bytes -= left_bytes;
  std::vector<Transfer*> all;
  for (Transfer& copy : copies) all.push_back(&copy);
  share(all, bytes_per_ns_, now_ns_, kNever);
  return copies[static_cast<size_t>(std::distance(std::list<Transfer>::const_iterator(transfers_.begin()),
                                                  std::list<Transfer>::const_iterator(ticket)))]
      .end_ns;
}

LinkPort::Ticket LinkPort::begin(int64_t begin_ns, int64_t latency_ns, int64_t bytes, bool sends, bool receives) {
  Ticket ticket;
  {
    std::lock_guard lock(mutex_);
    schedule_.advance(begin_ns);
    ticket = schedule_.add(begin_ns, latency_ns, bytes, sends, receives);
    ++membership_;
  }
  changed_.notify_all();
  return ticket;
}

bool LinkPort::sleep_until(std::unique_lock<std::mutex>& lock, Ticket ticket, bool (*cancelled)(void*),
                           void* argument) {
  while (true) {
    if (cancelled(argument)) return false;
    const int64_t now_ns = monotonic_ns();
    schedule_.advance(now_ns);
    if (ticket->done) return true;
    // A transfer that joins or leaves changes the end, and wakes the others.
    const int64_t end_ns = schedule_.predicted_end_ns(ticket);
    const uint64_t seen = membership_;
    const auto deadline = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(end_ns));
    changed_.wait_until(lock, deadline, [&] { return membership_ != seen || cancelled(argument); });
  }
}

void LinkPort::leave(Ticket ticket) {
  {
    std::lock_guard lock(mutex_);
    schedule_.advance(monotonic_ns());
    schedule_.remove(ticket);
    ++membership_;
  }
  changed_.notify_all();
}

void LinkPort::wake_all() {
  {
    std::lock_guard lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

void LinkPort::when_done(Ticket ticket, std::function<void()> done, int64_t left_bytes) {
  {
    std::lock_guard lock(mutex_);
    // Parts of a transfer are in the order of their bytes, so that a late thread reports them in this order.
    const auto later = std::find_if(released_.begin(), released_.end(), [&](const Release& release) {
      return release.ticket == ticket && release.left_bytes < static_cast<double>(left_bytes);
    });
    released_.insert(later, {ticket, std::move(done), static_cast<double>(left_bytes)});
    if (!releaser_.joinable()) releaser_ = start_thread("the emulated link", [this] { release(); });
    ++membership_;
  }
  changed_.notify_all();
}

void LinkPort::release() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    const int64_t now_ns = monotonic_ns();
    schedule_.advance(now_ns);
    // Transfers that are done are released in the order of their ends, even if this thread is late.
    int64_t next_ns = kNever;
    auto first = released_.end();
    for (auto at = released_.begin(); at != released_.end();) {
      const PortSchedule::Transfer& transfer = *at->ticket;
      const bool is_part = at->left_bytes > 0;
      if (!woken_ && !transfer.done &&
          !(is_part && transfer.sends_from_ns <= now_ns && transfer.left_bytes <= at->left_bytes)) {
        next_ns = std::min(next_ns, schedule_.predicted_end_ns(at->ticket, at->left_bytes));
      } else if (is_part) {
        at->done();
        at = released_.erase(at);
        continue;
      } else if (first == released_.end() || transfer.end_ns < first->ticket->end_ns) {
        first = at;
      }
      ++at;
    }
    if (first != released_.end()) {
      schedule_.remove(first->ticket);
      first->done();
      released_.erase(first);
      ++membership_;
      changed_.notify_all();
      continue;  // the remaining transfers become faster
    }
    const uint64_t seen = membership_;
    const auto moved = [&] { return ends_ || membership_ != seen || (woken_ && !released_.empty()); };
    if (next_ns == kNever)
      changed_.wait(lock, moved);
    else
      changed_.wait_until(lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(next_ns)), moved);
  }
}

LinkPort::~LinkPort() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (releaser_.joinable()) releaser_.join();
}

}  // namespace slipstream::comm

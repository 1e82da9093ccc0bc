// SPDX-License-Identifier: Apache-2.0
// Each group has one mutex and one condition variable, because ranks in one process are for tests and small runs.

#include "comm/thread/thread_group.h"

#include <algorithm>
#include <chrono>

#include "engine/base/check.h"

namespace slipstream::comm {

ThreadGroup::ThreadGroup(int size, const CommOptions& options)
    : size_(size),
      options_(options),
      posts_(static_cast<size_t>(size)),
      arrived_(static_cast<size_t>(size)),
      boxes_(static_cast<size_t>(size * size)),
      times_(static_cast<size_t>(size * size)) {}

void ThreadGroup::abort() {
  {
    std::lock_guard lock(mutex_);
    aborted_ = true;
  }
  changed_.notify_all();
}

void ThreadGroup::show(int rank, const Post& post, const std::string& what) {
  std::lock_guard lock(mutex_);
  if (aborted_)
    throw CommError("[comm] {}: aborted before rank {} arrived. Look for the first error of the run.", what, rank);
  posts_[static_cast<size_t>(rank)] = post;
}

void ThreadGroup::wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready, int rank,
                       const std::string& what, const std::function<std::string()>& missing) {
  const auto begin = std::chrono::steady_clock::now();
  const auto deadline = begin + std::chrono::duration_cast<std::chrono::nanoseconds>(
                                    std::chrono::duration<double>(options_.timeout_seconds));
  const auto waited = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  changed_.wait_until(lock, deadline, [&] { return aborted_ || ready(); });
  if (aborted_)
    throw CommError("[comm] {}: aborted on rank {} after {:.3f} s waiting for {}. Look for the first error of the run.",
                    what, rank, waited(), missing());
  if (!ready()) {
    aborted_ = true;  // the others cannot finish either
    changed_.notify_all();
    throw CommError(
        "[comm] {}: rank {} waited {:.3f} s for {}. Check the output of that rank, or raise the timeout ({} s).", what,
        rank, waited(), missing(), options_.timeout_seconds);
  }
}

void ThreadGroup::barrier(int rank, const std::string& what) {
  std::unique_lock lock(mutex_);
  const uint64_t mine = generation_;
  arrived_[static_cast<size_t>(rank)] = true;
  if (++arrivals_ == size_ && !aborted_) {
    arrivals_ = 0;
    std::fill(arrived_.begin(), arrived_.end(), false);
    ++generation_;
    lock.unlock();
    changed_.notify_all();
    return;
  }
  wait(
      lock, [&] { return generation_ != mine; }, rank, what,
      [&] {
        std::string missing = "rank";
        for (int r = 0; r < size_; ++r)
          if (!arrived_[static_cast<size_t>(r)]) missing += fmt::format(" {}", r);
        return missing;
      });
}

void ThreadGroup::offer(int from, int to, const void* data, int64_t size_bytes, const std::string& what) {
  wait_taken(from, to, what);
  {
    std::lock_guard lock(mutex_);
    Box& slot = box(boxes_, from, to);
    slot.data = data;
    slot.value = size_bytes;
    ++slot.offered;
  }
  changed_.notify_all();
}

void ThreadGroup::wait_taken(int from, int to, const std::string& what) {
  std::unique_lock lock(mutex_);
  const Box& slot = box(boxes_, from, to);
  wait(
      lock, [&] { return slot.offered == slot.taken; }, from, what, [&] { return fmt::format("rank {}", to); });
}

void ThreadGroup::take(int from, int to, void* data, int64_t size_bytes, const std::string& what) {
  std::unique_lock lock(mutex_);
  Box& slot = box(boxes_, from, to);
  wait(
      lock, [&] { return slot.offered != slot.taken; }, to, what, [&] { return fmt::format("rank {}", from); });
  if (slot.value != size_bytes)
    throw CommError(
        "[comm] {}: rank {} expects {} bytes from rank {}, which sends {}. Both must launch the same verbs in "
        "the same order.",
        what, to, size_bytes, from, slot.value);
  lock.unlock();
  if (size_bytes > 0) std::copy_n(static_cast<const std::byte*>(slot.data), size_bytes, static_cast<std::byte*>(data));
  lock.lock();
  ++slot.taken;
  lock.unlock();
  changed_.notify_all();
}

void ThreadGroup::offer_time(int from, int to, int64_t time_ns, const std::string& what) {
  std::unique_lock lock(mutex_);
  Box& slot = box(times_, from, to);
  wait(
      lock, [&] { return slot.offered == slot.taken; }, from, what, [&] { return fmt::format("rank {}", to); });
  slot.value = time_ns;
  ++slot.offered;
  lock.unlock();
  changed_.notify_all();
}

int64_t ThreadGroup::take_time(int from, int to, const std::string& what) {
  std::unique_lock lock(mutex_);
  Box& slot = box(times_, from, to);
  wait(
      lock, [&] { return slot.offered != slot.taken; }, to, what, [&] { return fmt::format("rank {}", from); });
  const int64_t time_ns = slot.value;
  ++slot.taken;
  lock.unlock();
  changed_.notify_all();
  return time_ns;
}

}  // namespace slipstream::comm

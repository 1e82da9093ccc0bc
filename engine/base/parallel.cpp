// SPDX-License-Identifier: Apache-2.0
// Workers spin briefly for the next range and then sleep, so that an idle pool uses no core.

#include "engine/base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/base/check.h"

namespace slipstream {
namespace {

// Spinning lasts long enough for the gap between two ops of one layer, and is short enough to be negligible when a
// stream is idle.
constexpr int kSpins = 4000;

constexpr uint64_t kTaken = uint64_t{1} << 32;  // no generation

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

template <typename Ready>
void spin_then_wait(const std::atomic<uint32_t>& word, Ready ready) {
  for (int i = 0; i < kSpins; ++i) {
    if (ready(word.load(std::memory_order_acquire))) return;
    relax();
  }
  for (uint32_t seen = word.load(std::memory_order_acquire); !ready(seen); seen = word.load(std::memory_order_acquire))
    word.wait(seen, std::memory_order_acquire);
}

}  // namespace

void for_each_index(size_t count, int threads, const std::function<void(size_t)>& body) {
  std::atomic<size_t> next{0};
  std::vector<std::exception_ptr> errors(static_cast<size_t>(std::max(threads, 1)));
  const auto work = [&](size_t thread) {
    try {
      for (size_t i = next++; i < count; i = next++) body(i);
    } catch (...) {
      errors[thread] = std::current_exception();
      next = count;
    }
  };
  std::vector<std::thread> others;
  try {
    for (size_t thread = 1; thread < errors.size(); ++thread)
      others.push_back(start_thread("a loop", [&work, thread] { work(thread); }));
  } catch (const ResourceError&) {  // fewer threads do the same work
  }
  work(0);
  for (std::thread& other : others) other.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

int threads_for(size_t count) {
  constexpr size_t kMany = 64;
  return count < kMany ? 1 : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

struct ThreadPool::State {
  std::atomic<uint32_t> generation{0};  // bumped once per parallel_for, and once to stop
  std::atomic<uint32_t> remaining{0};
  /// The entry of worker i + 1 is the generation whose part no thread has begun. Only the thread that takes it reads
  /// the range below.
  std::vector<std::atomic<uint64_t>> open;
  std::atomic<bool> stop{false};
  const RangeFunction* body = nullptr;
  int64_t count = 0;
  int64_t part = 0;
  std::mutex error_mutex;
  std::exception_ptr error;
  std::vector<std::thread> workers;

  explicit State(size_t started) : open(started) {
    for (auto& part_of : open) part_of = kTaken;
  }

  /// Stops the workers that have started, also when a later one could not start.
  ~State() {
    stop = true;
    generation.fetch_add(1, std::memory_order_release);
    generation.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  bool take_part(size_t worker, uint32_t now) {
    uint64_t expected = now;
    return open[worker].compare_exchange_strong(expected, kTaken, std::memory_order_acq_rel);
  }

  /// Runs the parts of generation `now` that no thread has begun, beginning with the part of worker `first` + 1. The
  /// range stays valid meanwhile, because the owner waits until every part has ended.
  void run_open_parts(size_t first, uint32_t now) {
    for (size_t i = 0; i < open.size(); ++i) {
      const size_t worker = (first + i) % open.size();
      if (!take_part(worker, now)) continue;
      run_part(static_cast<int64_t>(worker) + 1);
      if (remaining.fetch_sub(1, std::memory_order_acq_rel) == 1) remaining.notify_one();
    }
  }

  void run_part(int64_t index) {
    const int64_t begin = std::min(count, index * part);
    const int64_t end = std::min(count, begin + part);
    if (begin >= end) return;
    try {
      (*body)(begin, end);
    } catch (...) {
      std::lock_guard lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  }
};

std::thread start_thread(std::string_view what, std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw ResourceError(
        "[host] {} could not start a thread: {}. Allow more threads or memory, lower device.threads, or use fewer "
        "ranks on "
        "this host.",
        what, error.what());
  }
}

ThreadPool::ThreadPool(int threads) {
  SLIP_ASSERT(threads >= 1);
  state_ = std::make_unique<State>(static_cast<size_t>(threads - 1));
  for (int worker = 1; worker < threads; ++worker)
    state_->workers.push_back(
        start_thread(fmt::format("a pool of {} threads", threads), [state = state_.get(), worker] {
          uint32_t seen = 0;
          while (true) {
            spin_then_wait(state->generation, [&](uint32_t now) { return now != seen; });
            seen = state->generation.load(std::memory_order_acquire);
            if (state->stop) return;
            state->run_open_parts(static_cast<size_t>(worker - 1), seen);
          }
        }));
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::parallel_for(int64_t count, int64_t grain, RangeFunction body) {
  if (count <= 0) return;
  const int64_t parts = std::clamp<int64_t>(count / std::max<int64_t>(grain, 1), 1, threads());
  if (parts == 1) return body(0, count);
  state_->body = &body;
  state_->count = count;
  state_->part = (count + parts - 1) / parts;
  state_->remaining.store(static_cast<uint32_t>(state_->workers.size()), std::memory_order_relaxed);
  const uint32_t now = state_->generation.load(std::memory_order_relaxed) + 1;
  for (auto& part_of : state_->open) part_of.store(now, std::memory_order_relaxed);
  state_->generation.store(now, std::memory_order_release);
  state_->generation.notify_all();
  state_->run_part(0);
  state_->run_open_parts(0, now);
  spin_then_wait(state_->remaining, [](uint32_t left) { return left == 0; });
  if (state_->error) std::rethrow_exception(std::exchange(state_->error, nullptr));
}

}  // namespace slipstream

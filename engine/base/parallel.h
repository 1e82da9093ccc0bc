// SPDX-License-Identifier: Apache-2.0
#pragma once
// The threads of one compute stream. They split an index range in the same way whenever their number is the same.

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>
#include <type_traits>

namespace slipstream {

/// Starts `body` on a new thread. Throws: ResourceError that names `what` if the system has no thread or no memory for
/// its stack.
std::thread start_thread(std::string_view what, std::function<void()> body);

/// Blocks. Calls body(i) for every i below `count` on up to `threads` threads, of which the caller is one. Each thread
/// takes the next free index. Throws: what a body threw, after all threads have ended.
void for_each_index(size_t count, int threads, const std::function<void(size_t)>& body);

/// Returns the number of threads for work on `count` objects, such as the stages of a pipeline: all cores for many
/// objects, else 1, because the caller may be one of several threads.
int threads_for(size_t count);

/// A borrowed reference to a callable `void(int64_t begin, int64_t end)`. It never allocates.
class RangeFunction {
 public:
  template <typename F, typename = std::enable_if_t<!std::is_same_v<std::decay_t<F>, RangeFunction>>>
  RangeFunction(F&& f)  // NOLINT: implicit on purpose, callers pass lambdas
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* o, int64_t b, int64_t e) { (*static_cast<std::remove_reference_t<F>*>(o))(b, e); }) {}
  void operator()(int64_t begin, int64_t end) const { call_(object_, begin, end); }

 private:
  void* object_;
  void (*call_)(void*, int64_t, int64_t);
};

/// A pool of `threads` workers, including the caller. Only one thread at a time, that of the owning stream, uses the
/// pool.
class ThreadPool {
 public:
  /// Starts threads - 1 workers; `threads` is at least 1. Throws: ResourceError if the system refuses one.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  /// Blocks. Splits [0, count) into at most threads() contiguous parts of at least `grain` indices (the last may be
  /// smaller) and runs them. The split depends on (count, grain, threads()) alone. Worker p runs part p. While another
  /// program occupies that worker's core, a thread that has finished its own part takes part p: a part must not wait
  /// for another one.
  void parallel_for(int64_t count, int64_t grain, RangeFunction body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slipstream

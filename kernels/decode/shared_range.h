// SPDX-License-Identifier: Apache-2.0
#pragma once
// A range that threads share while they work through it: a thread that other programs delay takes less of it.

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "engine/device/work.h"

namespace slipstream::kernels::SLIP_ISA {

/// Calls body(begin, end) for parts of [0, count) on all threads of the context. The parts begin with half of a
/// thread's equal share and shrink to `grain`, so that few parts are needed and all threads end together. The results
/// of the body must not depend on the split.
template <typename Body>
inline void for_shared(LaunchContext& context, int64_t count, int64_t grain, const Body& body) {
  const int64_t threads = context.pool->threads();
  if (threads == 1 || count <= grain) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
  std::atomic<int64_t> next{0};
  context.parallel_for(threads, 1, [&](int64_t, int64_t) {
    for (int64_t at = next.load(std::memory_order_relaxed); at < count;) {
      const int64_t size = std::min(std::max(grain, (count - at) / (2 * threads)), count - at);
      if (!next.compare_exchange_weak(at, at + size, std::memory_order_relaxed)) continue;
      body(at, at + size);
      at = next.load(std::memory_order_relaxed);
    }
  });
}

}  // namespace slipstream::kernels::SLIP_ISA

// SPDX-License-Identifier: Apache-2.0
// Populates pages in parallel, because the kernel clears them one after the other.

#include "engine/device/cpu/resident.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

#include "engine/base/parallel.h"
#include "engine/base/units.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace slipstream::cpu {

void make_resident(std::span<std::byte> memory, int threads) {
  constexpr int64_t kUnitBytes = 32 * kMiB;  // a multiple of a huge page, which two threads would otherwise both take
  const int64_t size_bytes = std::ssize(memory), units = ceil_div(size_bytes, kUnitBytes);
  if (units == 0) return;
  ThreadPool pool(static_cast<int>(std::min<int64_t>(threads, units)));
  pool.parallel_for(units, 1, [&](int64_t begin, int64_t end) {
    const int64_t from = begin * kUnitBytes, to = std::min(end * kUnitBytes, size_bytes);
    // A failure shows at the first write, as it would without this call.
    ::madvise(memory.data() + from, static_cast<size_t>(to - from), MADV_POPULATE_WRITE);
  });
}

}  // namespace slipstream::cpu

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The pace of a thread that writes beside training: a low priority, and an optional limit of its rate.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

namespace slipstream::checkpoint {

class WriterPace {
 public:
  /// The constructing thread must have the usual priority. 0: no limit of the rate.
  explicit WriterPace(int64_t bytes_per_second);

  /// The writer calls this before its first byte.
  void begin();
  /// Blocks. The writer calls this after every piece. Returns when the average rate of all pieces is not above the
  /// limit.
  void keep(int64_t size_bytes);
  /// Any thread may call this. From now on the writer has no limit, and it has the usual priority where the system lets
  /// it return to it.
  void lift();

 private:
  const int64_t bytes_per_second_;
  const int usual_priority_;
  std::mutex mutex_;
  std::condition_variable lifting_;
  bool lifted_ = false;
  // Only the writer uses these:
  bool is_low_ = false;
  std::chrono::steady_clock::time_point start_;
  int64_t done_bytes_ = 0;
};

}  // namespace slipstream::checkpoint

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The pace of a thread that writes beside training: a low priority, and at most a rate.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

namespace slipstream::checkpoint {

class WriterPace {
 public:
  /// Made by a thread with the usual priority. 0: no limit of the rate.
  explicit WriterPace(int64_t bytes_per_second);

  /// The writer calls it before its first byte.
  void begin();
  /// Blocks. The writer calls it after every piece. Returns when all pieces were, on average, not faster than the rate.
  void keep(int64_t size_bytes);
  /// Any thread. From now on the writer has no limit, and the usual priority where the system lets it return to it.
  void lift();

 private:
  const int64_t bytes_per_second_;
  const int usual_priority_;
  std::mutex mutex_;
  std::condition_variable lifting_;
  bool lifted_ = false;
  // The writer's:
  bool is_low_ = false;
  std::chrono::steady_clock::time_point start_;
  int64_t done_bytes_ = 0;
};

}  // namespace slipstream::checkpoint

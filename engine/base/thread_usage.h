// SPDX-License-Identifier: Apache-2.0
#pragma once
// Measures how long a thread ran and how long it waited for a core since the last reading.

#include <cstdint>

namespace slipstream {

/// The CPU usage of the calling thread. A reading costs two system calls, about 1 to 3 us.
class ThreadUsage {
 public:
  ThreadUsage();
  ~ThreadUsage();
  ThreadUsage(const ThreadUsage&) = delete;
  ThreadUsage& operator=(const ThreadUsage&) = delete;

  struct Part {
    int64_t ran_ns = 0;
    int64_t ready_ns = 0;  // time it waited for a core; 0 on a kernel that does not report it
  };
  /// Returns the usage since the last call, or since the start.
  Part look();

 private:
  Part total() const;
  int descriptor_ = -1;
  Part before_;
};

}  // namespace slipstream

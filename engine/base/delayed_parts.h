// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parts of a range whose workers are late, because other programs have their cores.

namespace slipstream {

/// While an object lives, ThreadPool::parallel_for() on its thread does not wait for workers that have not begun: when
/// the caller has run its own part, it runs theirs. The split is the same, the thread of a part is not. For many short
/// ranges, where a worker that the system delays by a time slice would cost more than its part.
class RunsDelayedParts {
 public:
  RunsDelayedParts();
  ~RunsDelayedParts();
  RunsDelayedParts(const RunsDelayedParts&) = delete;
  RunsDelayedParts& operator=(const RunsDelayedParts&) = delete;

 private:
  bool before_;
};

}  // namespace slipstream

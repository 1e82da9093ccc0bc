// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state that the ranks of a thread communicator share: a barrier and mailboxes, with abort and timeout.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/host/bind.h"

namespace slipstream::comm {

class ThreadGroup {
 public:
  ThreadGroup(int size, const CommOptions& options);

  /// The operands that a rank publishes while a collective runs. They are stable from its first barrier to its last.
  /// The verb is a copy, because a rank that leaves early after an abort destroys its own verb while others still
  /// compare.
  struct Post {
    Verb verb;
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    int64_t entry_ns = 0;
    const int32_t* counts = nullptr;  // all_to_all_v
  };

  int size() const { return size_; }
  void abort();

  /// Publishes `post`, which the others may read after the next barrier. Throws: CommError if the group was aborted,
  /// because others may still read the previous post of this rank.
  void show(int rank, const Post& post, const std::string& what);
  const std::vector<Post>& posts() const { return posts_; }

  /// Blocks. Returns when all ranks have arrived.
  void barrier(int rank, const std::string& what);
  /// Blocks until `to` has taken the previous offer, then offers bytes and returns.
  void offer(int from, int to, const void* data, int64_t size_bytes, const std::string& what);
  /// Blocks. Returns when `to` has taken the last offer from `from`.
  void wait_taken(int from, int to, const std::string& what);
  /// Blocks. Copies the next offer from `from`. Throws: CommError if its size differs.
  void take(int from, int to, void* data, int64_t size_bytes, const std::string& what);
  /// Blocks. Like offer and take, for one number that travels by value, in separate mailboxes.
  void offer_time(int from, int to, int64_t time_ns, const std::string& what);
  int64_t take_time(int from, int to, const std::string& what);

 private:
  struct Box {
    const void* data = nullptr;
    int64_t value = 0;  // a size in bytes, or a time
    uint64_t offered = 0;
    uint64_t taken = 0;
  };
  Box& box(std::vector<Box>& boxes, int from, int to) { return boxes[static_cast<size_t>(from * size_ + to)]; }
  /// Sleeps until `ready`. Throws: CommError on abort and timeout, which names `what` and the `missing` ranks.
  void wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready, int rank, const std::string& what,
            const std::function<std::string()>& missing);

  int size_;
  CommOptions options_;
  std::vector<Post> posts_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool aborted_ = false;
  uint64_t generation_ = 0;
  std::vector<bool> arrived_;
  int arrivals_ = 0;
  std::vector<Box> boxes_;
  std::vector<Box> times_;
};

}  // namespace slipstream::comm

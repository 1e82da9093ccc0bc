// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the fake NCCL's ranks meet when they are processes: memory of rank 0 that the others map, gone with its
// process.

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace slipstream::fake_nccl {

class SharedGroup {
 public:
  /// Makes the meeting place; its name opens it in other processes while this one lives.
  static std::string make();
  explicit SharedGroup(const std::string& name);
  ~SharedGroup();
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;

  /// Blocks until all `size` ranks have brought their bytes; then `take` sees those of all ranks, by rank.
  void meet(int rank, int size, const void* bytes, size_t size_bytes,
            const std::function<void(const std::vector<const std::byte*>&)>& take);
  /// Blocks while some megabytes of this pair are on their way.
  void send(int rank, int peer, const void* bytes, size_t size_bytes);
  /// Blocks until the bytes are there.
  void receive(int rank, int peer, void* bytes, size_t size_bytes);
  /// What waits in this process returns, with undefined data.
  void abort();

 private:
  struct Place;
  Place* place_ = nullptr;
  bool aborted_ = false;  // under the place's mutex
};

}  // namespace slipstream::fake_nccl

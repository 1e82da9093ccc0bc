// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the fake NCCL's ranks meet when they are processes: memory of rank 0 that the others map, gone with its
// process.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace slipstream::fake_nccl {

/// The exit code of a process whose operations do not meet those of the others.
constexpr int kOrdersDiffer = 86;
/// Ends the process with kOrdersDiffer.
[[noreturn]] void end_because(const std::string& sentence);

/// Operations come with words, equal on all ranks that meet in one; `name` is that of the communicator. Whoever waits
/// longer than `patience` for the others, or meets other words, ends its process with a sentence.
class SharedGroup {
 public:
  static inline std::chrono::milliseconds patience{60000};
  /// Makes the meeting place; its name opens it in other processes while this one lives.
  static std::string make();
  explicit SharedGroup(const std::string& name);
  ~SharedGroup();
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;

  /// Blocks until all `size` ranks have brought their bytes; then `take` sees those of all ranks, by rank.
  void meet(int rank, int size, const std::string& words, const std::string& name, const void* bytes, size_t size_bytes,
            const std::function<void(const std::vector<const std::byte*>&)>& take);
  /// Blocks while some megabytes of this pair are on their way.
  void send(int rank, int peer, const std::string& words, const std::string& name, const void* bytes,
            size_t size_bytes);
  /// Blocks until the bytes are there.
  void receive(int rank, int peer, const std::string& words, const std::string& name, void* bytes, size_t size_bytes);
  /// What waits in this process returns, with undefined data.
  void abort();

 private:
  struct DeviceAssignment;
  /// Waits until `ready`, under the place's mutex; false if aborted first.
  template <typename Ready>
  bool wait(const Ready& ready, const std::string& who);
  void put(int rank, int peer, const void* bytes, size_t size_bytes, const std::string& who);
  void take(int rank, int peer, void* bytes, size_t size_bytes, const std::string& who);
  DeviceAssignment* assignment_ = nullptr;
  bool aborted_ = false;  // under the place's mutex
};

}  // namespace slipstream::fake_nccl

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rendezvous of the fake NCCL's ranks when they are processes: memory of rank 0 that the others map, removed with
// its process.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace slipstream::fake_nccl {

/// The exit code of a process whose operations do not match those of the others.
constexpr int kOrdersDiffer = 86;
/// Ends the process with kOrdersDiffer.
[[noreturn]] void end_because(const std::string& sentence);

/// Operations carry texts, equal on all ranks of one rendezvous; `name` is that of the communicator. A rank that waits
/// longer than `patience` for the others, or meets another text, ends its process with an error.
class SharedGroup {
 public:
  static inline std::chrono::milliseconds patience{60000};
  /// Makes the shared memory; its name opens it in other processes while this one lives.
  static std::string make();
  explicit SharedGroup(const std::string& name);
  ~SharedGroup();
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;

  /// Blocks until all `size` ranks have brought their bytes; then `take` sees those of all ranks, by rank.
  void meet(int rank, int size, const std::string& words, const std::string& name, const void* bytes, size_t size_bytes,
            const std::function<void(const std::vector<const std::byte*>&)>& take);
  /// Blocks while some megabytes of this pair are in flight.
  void send(int rank, int peer, const std::string& words, const std::string& name, const void* bytes,
            size_t size_bytes);
  /// Blocks until the bytes have arrived.
  void receive(int rank, int peer, const std::string& words, const std::string& name, void* bytes, size_t size_bytes);
  /// Makes waits in this process return, with undefined data.
  void abort();

 private:
  struct SharedMemory;
  /// Waits until `ready`, under the shared mutex; false if aborted first.
  template <typename Ready>
  bool wait(const Ready& ready, const std::string& label);
  void put(int rank, int peer, const void* bytes, size_t size_bytes, const std::string& label);
  void take(int rank, int peer, void* bytes, size_t size_bytes, const std::string& label);
  SharedMemory* memory_ = nullptr;
  bool aborted_ = false;  // under the shared mutex
};

}  // namespace slipstream::fake_nccl

// SPDX-License-Identifier: Apache-2.0
#pragma once
// A keeper: a small process of a host that holds memory of a run while the run's processes come and go.
//
// It is a table of names and memory files (memfd), nothing else. Files in /dev/shm would outlive every process, but
// need a size that containers limit to 64 MiB, and would stay behind when no rank is left to remove them. The keeper
// ends, and frees its memory, when the run asks for it or when no rank has been connected for a while. Its address is
// an abstract socket, which only processes of the same network namespace see.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace slipstream::runtime {

/// Memory that a keeper may share. Unmapped at the end of its life here.
class KeptMemory {
 public:
  /// Blocks. New memory, all of it taken now and zero.
  /// Throws: ResourceError if this host does not have it.
  static std::unique_ptr<KeptMemory> make(int64_t size_bytes);
  /// Takes over a memory file. Null if it cannot be mapped, or its size is not sealed.
  static std::unique_ptr<KeptMemory> adopt(int file);
  ~KeptMemory();
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  int file() const { return file_; }

 private:
  KeptMemory(int file, std::span<std::byte> bytes) : file_(file), bytes_(bytes) {}
  int file_ = -1;
  std::span<std::byte> bytes_;
};

/// A connection to the keeper of this host. Requests on a lost connection have no effect and return nothing.
class Keeper {
 public:
  /// Blocks. Connects to the keeper `name` of this host, or starts one. Null if that fails.
  static std::unique_ptr<Keeper> start(const std::string& name);
  /// Blocks. Null if this host has none of this name, or a process of another user listens there.
  static std::unique_ptr<Keeper> find(const std::string& name);
  /// Blocks. Throws: ResourceError if a process of another user listens at the address of the keeper `name`.
  static void require_own(const std::string& name);
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  /// Does not wait.
  bool lives() const;
  /// Blocks. Gives the memory to the keeper; replaces one of the same name. False if the keeper is lost.
  bool put(const std::string& entry, const KeptMemory& memory);
  /// Blocks. Null if there is none.
  std::unique_ptr<KeptMemory> get(const std::string& entry);
  std::vector<std::string> list();
  void drop(const std::string& entry);
  /// Blocks. Drops everything. The keeper ends behind its last connection.
  void end();

 private:
  explicit Keeper(int socket) : socket_(socket) {}
  /// Sends a request and returns the answer; `file` travels with the request, or becomes that of the answer.
  std::optional<std::string> ask(const std::string& request, int* file = nullptr);
  int socket_;
};

/// Blocks. Runs the keeper `name` in a process of its own; returns when it listens, or when the host has one already.
/// It ends `idle_seconds` after its last connection. Throws: ResourceError.
void keep(const std::string& name, int64_t idle_seconds);

}  // namespace slipstream::runtime

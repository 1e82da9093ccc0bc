// SPDX-License-Identifier: Apache-2.0
#pragma once
// A keeper: a small process of a host that holds memory of a run while the run's processes come and go.
//
// It is only a table of names and memory files (memfd). Files in /dev/shm would outlive every process, too, but
// containers limit their size to 64 MiB, and they would remain when no rank is left to remove them. The keeper ends and
// frees its memory when the run asks for it, or when no rank has been connected for a while. Its address is an abstract
// socket, which only processes of the same network namespace see.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace slipstream::runtime {

/// Memory that a keeper may share. The destructor unmaps it here.
class KeptMemory {
 public:
  /// Blocks. Makes new memory that is zero, and takes all of it now.
  /// Throws: ResourceError if this host does not have it.
  static std::unique_ptr<KeptMemory> make(int64_t size_bytes);
  /// Takes over a memory file. Returns null if it cannot be mapped, or if its size is not sealed.
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
  /// Blocks. Connects to the keeper `name` of this host, or starts one. Returns null if that fails.
  static std::unique_ptr<Keeper> start(const std::string& name);
  /// Blocks. Returns null if this host has no keeper of this name, or if a process of another user listens there.
  static std::unique_ptr<Keeper> find(const std::string& name);
  /// Blocks. Throws: ResourceError if a process of another user listens at the address of the keeper `name`.
  static void require_own(const std::string& name);
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  /// Returns true if the connection still exists. Does not wait.
  bool lives() const;
  /// Blocks. Gives the memory to the keeper, which replaces memory with the same name. Returns false if the keeper is
  /// lost.
  bool put(const std::string& entry, const KeptMemory& memory);
  /// Blocks. Returns null if there is none.
  std::unique_ptr<KeptMemory> get(const std::string& entry);
  std::vector<std::string> list();
  void drop(const std::string& entry);
  /// Blocks. Drops everything. The keeper ends after its last connection.
  void end();

 private:
  explicit Keeper(int socket) : socket_(socket) {}
  /// Sends a request and returns the answer. `file` travels with the request, or becomes the file of the answer.
  std::optional<std::string> ask(const std::string& request, int* file = nullptr);
  int socket_;
};

/// Blocks. Runs the keeper `name` in a process of its own. Returns when that process listens, or when the host already
/// has such a keeper. The keeper ends `idle_seconds` after its last connection. Throws: ResourceError.
void keep(const std::string& name, int64_t idle_seconds);

}  // namespace slipstream::runtime

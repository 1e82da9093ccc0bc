// SPDX-License-Identifier: Apache-2.0
#pragma once
// XXH3-128 over bytes. It detects accidents (a truncated copy, a flipped bit), not attacks.
// Source: xxHash 0.8, github.com/Cyan4973/xxHash; seed 0, printed like `xxhsum -H2`.

#include <cstdint>
#include <memory>
#include <string>

#include "engine/base/files.h"

namespace slipstream::data {

/// Returns 32 lowercase hexadecimal digits, the most significant first. Pure.
std::string xxh3_128_hex(const void* bytes, int64_t size_bytes);

/// Computes the same hash over bytes that arrive in pieces of any size.
class Xxh3 {
 public:
  Xxh3();
  Xxh3(const Xxh3&) = delete;
  Xxh3& operator=(const Xxh3&) = delete;
  ~Xxh3();

  void update(const void* bytes, int64_t size_bytes);
  /// Blocks. Adds the bytes [begin, end) of a file. Throws: as InputFile::read.
  void update(const files::InputFile& file, int64_t begin, int64_t end);
  /// Returns the hash of all bytes so far. update() may be called again afterwards. Pure.
  std::string hex() const;
  /// Returns the lower 64 bits of the hash. Pure.
  uint64_t low_bits() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slipstream::data

// SPDX-License-Identifier: Apache-2.0
#pragma once
// XXH3-128 over bytes: a check against accidents (a cut copy, a flipped bit), not against an adversary.
// Source: xxHash 0.8, github.com/Cyan4973/xxHash; seed 0, printed as `xxhsum -H2` prints it.

#include <cstdint>
#include <memory>
#include <string>

namespace slipstream::data {

/// 32 lowercase hexadecimal digits, most significant first. Pure.
std::string xxh3_128_hex(const void* bytes, int64_t size_bytes);

/// The same over bytes that arrive in pieces, however they are cut.
class Xxh3 {
 public:
  Xxh3();
  Xxh3(const Xxh3&) = delete;
  Xxh3& operator=(const Xxh3&) = delete;
  ~Xxh3();

  void update(const void* bytes, int64_t size_bytes);
  /// The hash of everything given so far; update() may follow. Pure.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slipstream::data

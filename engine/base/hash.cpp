// SPDX-License-Identifier: Apache-2.0
// Hashes with xxhash; only this file includes it.

#include "engine/base/hash.h"

#include <xxhash.h>

#include <algorithm>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/units.h"

namespace slipstream::data {

namespace {

std::string hex_of(XXH128_hash_t hash) {
  return fmt::format("{:016x}{:016x}", static_cast<uint64_t>(hash.high64), static_cast<uint64_t>(hash.low64));
}

}  // namespace

struct Xxh3::State {
  XXH3_state_t* handle = XXH3_createState();
  ~State() { XXH3_freeState(handle); }
};

std::string xxh3_128_hex(const void* bytes, int64_t size_bytes) {
  return hex_of(XXH3_128bits(bytes, static_cast<size_t>(size_bytes)));
}

Xxh3::Xxh3() : state_(std::make_unique<State>()) {
  SLIP_ASSERT(state_->handle != nullptr);
  XXH3_128bits_reset(state_->handle);
}

Xxh3::~Xxh3() = default;

void Xxh3::update(const void* bytes, int64_t size_bytes) {
  if (size_bytes > 0) XXH3_128bits_update(state_->handle, bytes, static_cast<size_t>(size_bytes));
}

void Xxh3::update(const files::InputFile& file, int64_t begin, int64_t end) {
  std::vector<char> bytes(static_cast<size_t>(std::clamp<int64_t>(end - begin, 0, kMiB)));
  while (begin < end) {
    const int64_t size = std::min(std::ssize(bytes), end - begin);
    file.read(begin, bytes.data(), size);
    update(bytes.data(), size);
    begin += size;
  }
}

uint64_t Xxh3::low_bits() const { return XXH3_128bits_digest(state_->handle).low64; }

std::string Xxh3::hex() const { return hex_of(XXH3_128bits_digest(state_->handle)); }

}  // namespace slipstream::data

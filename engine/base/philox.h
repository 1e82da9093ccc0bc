// SPDX-License-Identifier: Apache-2.0
#pragma once
// Philox4x32-10, a counter-based generator: the same (key, counter) gives the same numbers in any call order on any
// rank.
// Source: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3.

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace slipstream {

/// Computes ten rounds of Philox4x32. Pure.
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// A stream of random numbers that (seed, name) identifies. Element `index` is a pure function of the three.
class Philox {
 public:
  Philox(uint64_t seed, std::string_view name) {
    uint64_t hash = 1469598103934665603ull;  // FNV-1a of the name, mixed with the seed by Philox itself
    for (char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ull;
    const auto mixed = philox4x32({static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32), 0, 0},
                                  {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    key_ = {mixed[0], mixed[1]};
  }

  /// Returns the stream that has this key(), which was taken from another one.
  static Philox with_key(uint64_t key) {
    Philox stream;
    stream.key_ = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
    return stream;
  }
  /// The key for kernels, which compute the same words (kernels/cuda/philox.cuh) from the counter {index, index >> 32,
  /// 0, 1}.
  uint64_t key() const { return uint64_t{key_[1]} << 32 | key_[0]; }

  /// Returns 64 uniform bits. Pure.
  uint64_t bits(uint64_t index) const {
    const auto r = block(index);
    return uint64_t{r[1]} << 32 | r[0];
  }
  /// Returns a uniform number in [0, bound) for bound > 0. The bias is not noticeable for bound < 2^40. Pure.
  uint64_t below(uint64_t index, uint64_t bound) const {
    __extension__ using Product = unsigned __int128;
    return static_cast<uint64_t>((static_cast<Product>(bits(index)) * bound) >> 64);
  }
  /// Returns a uniform number in [0, 1). Pure.
  double uniform(uint64_t index) const { return static_cast<double>(bits(index) >> 11) * 0x1p-53; }
  /// Returns a number in [0, bound) by Zipf's law with exponent 1, which is roughly the frequency of tokens in text. k
  /// has the probability log((k + 2) / (k + 1)) / log(bound + 1), which is about 1 / ((k + 1.5) log(bound + 1)). For a
  /// bound of 50257, 6.4 % of the numbers are 0. Pure.
  uint64_t zipf(uint64_t index, uint64_t bound) const {
    const double rank = std::exp(uniform(index) * std::log(static_cast<double>(bound) + 1.0));  // in [1, bound + 1)
    const uint64_t below = static_cast<uint64_t>(rank) - 1;
    return below < bound ? below : bound - 1;
  }
  /// Returns a standard normal number: Box-Muller in double, rounded once. Pure.
  float normal(uint64_t index) const {
    const auto r = block(index);
    const double u = (static_cast<double>(uint64_t{r[1]} << 32 | r[0]) + 0.5) * 0x1p-64;
    const double v = (static_cast<double>(uint64_t{r[3]} << 32 | r[2]) + 0.5) * 0x1p-64;
    return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * 3.14159265358979323846 * v));
  }

 private:
  Philox() = default;
  std::array<uint32_t, 4> block(uint64_t index) const {
    return philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 1}, key_);
  }
  std::array<uint32_t, 2> key_{};
};

}  // namespace slipstream

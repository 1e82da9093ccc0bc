// SPDX-License-Identifier: Apache-2.0
#pragma once
// Conversion between texts of sizes, rates and times ("25MiB", "1Gbit/s", "50us") and int64 values.

#include <cstdint>
#include <string>
#include <string_view>

namespace slipstream {

/// Units are the last word of a name: `_bytes`, `_elems`, `_ns`, `_flops`. Times are int64 nanoseconds everywhere.

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;
constexpr int64_t kGiB = 1024 * kMiB;
constexpr int64_t kMicrosecond = 1000;
constexpr int64_t kMillisecond = 1000 * kMicrosecond;
constexpr int64_t kSecond = 1000 * kMillisecond;

/// "25MiB" -> 26214400. Units: B, kB, KB, MB, GB, TB, KiB, MiB, GiB, TiB. Pure.
/// Throws: ConfigError that names the text and the known units.
int64_t parse_bytes(std::string_view text);

/// "1Gbit/s" -> 125000000 bytes per second. Units: bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s, B/s, kB/s, MB/s, GB/s, TB/s.
/// Pure.
int64_t parse_bytes_per_second(std::string_view text);

/// "50us" -> 50000. Units: ns, us, ms, s, min. Pure.
int64_t parse_duration_ns(std::string_view text);

/// 26214400 -> "25.0 MiB". Pure.
std::string format_bytes(int64_t size_bytes);

/// 45200000 -> "45.2 ms". Pure.
std::string format_ns(int64_t time_ns);

/// 17012.3 -> "17.0k", 1.2e9 -> "1.20G". Pure.
std::string format_count(double count);

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
constexpr int64_t ceil_div(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

}  // namespace slipstream

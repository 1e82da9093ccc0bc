// SPDX-License-Identifier: Apache-2.0
// Reads and writes sizes, rates and times with their units.

#include "engine/base/units.h"

#include <array>
#include <charconv>
#include <cmath>

#include "engine/base/check.h"

namespace slipstream {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

template <size_t N>
int64_t parse_with_units(std::string_view text, const std::array<Unit, N>& units, std::string_view what) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  std::string names;
  for (const Unit& candidate : units) {
    if (error == std::errc() && candidate.name == unit) {
      const double value = number * candidate.factor;
      if (!(value >= 0) || value > 9.2e18)
        throw ConfigError("\"{}\" is not a {}: it must be between 0 and 9.2e18. Use a smaller value.", text, what);
      return static_cast<int64_t>(std::llround(value));
    }
    names += (names.empty() ? "" : ", ") + std::string(candidate.name);
  }
  throw ConfigError("\"{}\" is not a {}: it needs a number and one of the units {}.", text, what, names);
}

}  // namespace

int64_t parse_bytes(std::string_view text) {
  static constexpr std::array<Unit, 10> kUnits{{{"B", 1},
                                                {"kB", 1e3},
                                                {"KB", 1e3},
                                                {"MB", 1e6},
                                                {"GB", 1e9},
                                                {"TB", 1e12},
                                                {"KiB", 1024.0},
                                                {"MiB", 1048576.0},
                                                {"GiB", 1073741824.0},
                                                {"TiB", 1099511627776.0}}};
  return parse_with_units(text, kUnits, "size");
}

int64_t parse_bytes_per_second(std::string_view text) {
  static constexpr std::array<Unit, 10> kUnits{{{"bit/s", 0.125},
                                                {"kbit/s", 125.0},
                                                {"Mbit/s", 125e3},
                                                {"Gbit/s", 125e6},
                                                {"Tbit/s", 125e9},
                                                {"B/s", 1},
                                                {"kB/s", 1e3},
                                                {"MB/s", 1e6},
                                                {"GB/s", 1e9},
                                                {"TB/s", 1e12}}};
  return parse_with_units(text, kUnits, "rate");
}

int64_t parse_duration_ns(std::string_view text) {
  static constexpr std::array<Unit, 5> kUnits{{{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"min", 60e9}}};
  return parse_with_units(text, kUnits, "time");
}

std::string format_bytes(int64_t size_bytes) {
  const double size = static_cast<double>(size_bytes);
  if (std::abs(size) < 1024) return fmt::format("{} B", size_bytes);
  if (std::abs(size) < 1024.0 * 1024) return fmt::format("{:.1f} KiB", size / 1024);
  if (std::abs(size) < 1024.0 * 1024 * 1024) return fmt::format("{:.1f} MiB", size / 1048576);
  return fmt::format("{:.2f} GiB", size / 1073741824);
}

std::string format_ns(int64_t time_ns) {
  const double time = static_cast<double>(time_ns);
  if (std::abs(time) < 1e3) return fmt::format("{} ns", time_ns);
  if (std::abs(time) < 1e6) return fmt::format("{:.1f} us", time / 1e3);
  if (std::abs(time) < 1e9) return fmt::format("{:.1f} ms", time / 1e6);
  return fmt::format("{:.2f} s", time / 1e9);
}

std::string format_count(double count) {
  if (std::abs(count) < 1e3) return fmt::format("{:.0f}", count);
  if (std::abs(count) < 1e6) return fmt::format("{:.1f}k", count / 1e3);
  if (std::abs(count) < 1e9) return fmt::format("{:.1f}M", count / 1e6);
  if (std::abs(count) < 1e12) return fmt::format("{:.2f}G", count / 1e9);
  return fmt::format("{:.2f}T", count / 1e12);
}

}  // namespace slipstream

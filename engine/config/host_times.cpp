// SPDX-License-Identifier: Apache-2.0
// Reads and writes measured times, one per line, and looks up prices.

#include "engine/config/host_times.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <sstream>

#include "engine/base/check.h"
#include "engine/base/files.h"

namespace slipstream {
namespace {

void mix(uint64_t& hash, int64_t value) {
  hash = (hash ^ static_cast<uint64_t>(value)) * 0x9E3779B97F4A7C15u;
  hash ^= hash >> 29;
}

void mix(uint64_t& hash, const KernelCost& kernel) {
  for (const int64_t value : {static_cast<int64_t>(kernel.kind), int64_t{kernel.backward}, kernel.flops, kernel.bytes,
                              kernel.rows, kernel.cols, kernel.depth, kernel.count})
    mix(hash, value);
}

[[noreturn]] void refuse(const std::string& line, const char* need) {
  throw ConfigError("needs rows of slipstream calibrate, got the row '{}', which needs {}", files::printable(line, 120),
                    need);
}

}  // namespace

uint64_t shape_of(const Cost& cost) {
  uint64_t hash = 0x243F6A8885A308D3u;
  if (cost.kernels.empty()) mix(hash, KernelCost{.flops = cost.flops, .bytes = cost.bytes});
  for (const KernelCost& kernel : cost.kernels) mix(hash, kernel);
  return hash;
}

int64_t WorkTimes::local_time_ns(const std::string& op, int64_t bytes) const {
  const auto found = local_ns.find(op);
  if (found == local_ns.end() || found->second.empty()) return -1;
  const std::map<int64_t, int64_t>& times = found->second;
  const auto real = [](int64_t value) { return static_cast<double>(value); };
  const auto above = times.lower_bound(bytes);
  if (above != times.end() && above->first == bytes) return above->second;
  if (above == times.begin()) {
    // Small works have a part that does not shrink with their bytes.
    const double share = above->first > 0 ? real(bytes) / real(above->first) : 1;
    return static_cast<int64_t>(real(above->second) * std::max(share, 0.0));
  }
  const auto below = std::prev(above);
  if (above == times.end())
    return static_cast<int64_t>(real(below->second) * real(bytes) / std::max(1.0, real(below->first)));
  const double part = real(bytes - below->first) / real(above->first - below->first);
  return static_cast<int64_t>(real(below->second) + part * real(above->second - below->second));
}

const WorkTimes& HostTimes::at(int threads) const {
  static const WorkTimes none;
  const WorkTimes* best = &none;
  int distance = INT32_MAX;
  for (const auto& [measured, times] : by_threads)
    if (std::abs(measured - threads) < distance) distance = std::abs(measured - threads), best = &times;
  return *best;
}

const VerbTimes* HostTimes::verb(std::string_view name, int ranks) const {
  const VerbTimes* best = nullptr;
  for (const VerbTimes& times : verbs)
    if (times.verb == name && (!best || std::abs(times.ranks - ranks) < std::abs(best->ranks - ranks))) best = &times;
  return best;
}

int64_t HostTimes::crowded_wait_ns(int group, int ranks, int threads) const {
  if (ranks * threads <= cores) return 0;
  const CrowdedWait* best = nullptr;
  const auto distance = [&](const CrowdedWait& row) {
    return std::pair(std::abs(row.ranks - ranks), std::abs(row.group - group));
  };
  for (const CrowdedWait& row : waits)
    if (!best || distance(row) < distance(*best)) best = &row;
  return best ? best->wait_ns : 0;
}

std::string HostTimes::text() const {
  std::string text = fmt::format("cores {}\nemulated_ns {}\n", cores, emulated_ns);
  for (const VerbTimes& v : verbs)
    text += fmt::format("verb {} {} {} {} {} {:.6g}\n", v.verb, v.ranks, v.latency_ns, v.bytes_per_second, v.core_ns,
                        v.core_ns_per_byte);
  for (const CrowdedWait& row : waits) text += fmt::format("wait {} {} {}\n", row.group, row.ranks, row.wait_ns);
  for (const auto& [threads, times] : by_threads) {
    text += fmt::format("rates {} {:.6g} {:.6g} {:.6g}\n", threads, times.products_per_second, times.scores_per_second,
                        times.bytes_per_second);
    for (const auto& [op, sizes] : times.local_ns)
      for (const auto& [bytes, ns] : sizes) text += fmt::format("local {} {} {} {}\n", threads, op, bytes, ns);
    std::vector<std::string> rows;
    for (const auto& [shape, work] : times.works)
      rows.push_back(fmt::format("work {} {:016x} {} {}\n", threads, shape, work.time_ns, work.name));
    std::sort(rows.begin(), rows.end());
    for (const std::string& row : rows) text += row;
  }
  return text;
}

HostTimes HostTimes::parse(const std::string& text) {
  HostTimes host;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string kind;
    if (!(words >> kind)) continue;
    int threads = 0;
    if (kind == "cores") {
      if (!(words >> host.cores) || host.cores < 1) refuse(line, "a number of cores of at least 1");
    } else if (kind == "emulated_ns") {
      if (!(words >> host.emulated_ns) || host.emulated_ns < 0) refuse(line, "a time of at least 0");
    } else if (kind == "verb") {
      VerbTimes v;
      if (!(words >> v.verb >> v.ranks >> v.latency_ns >> v.bytes_per_second >> v.core_ns >> v.core_ns_per_byte) ||
          v.ranks < 2 || v.latency_ns < 0 || v.bytes_per_second <= 0 || v.core_ns < 0 || !(v.core_ns_per_byte >= 0))
        refuse(line, "a verb, at least 2 ranks, latency in ns, bytes/s above 0, core time in ns, core ns per byte");
      host.verbs.push_back(v);
    } else if (kind == "wait") {
      CrowdedWait row;
      if (!(words >> row.group >> row.ranks >> row.wait_ns) || row.group < 2 || row.ranks < row.group ||
          row.wait_ns < 0)
        refuse(line, "at least 2 ranks of a group, at least as many of the host, and a time in ns");
      host.waits.push_back(row);
    } else if (kind == "rates") {
      WorkTimes t;
      if (!(words >> threads >> t.products_per_second >> t.scores_per_second >> t.bytes_per_second) || threads < 1 ||
          !(t.products_per_second > 0 && t.scores_per_second > 0 && t.bytes_per_second > 0))
        refuse(line, "threads and three rates above 0");
      WorkTimes& into = host.by_threads[threads];
      into.products_per_second = t.products_per_second;
      into.scores_per_second = t.scores_per_second;
      into.bytes_per_second = t.bytes_per_second;
    } else if (kind == "local") {
      std::string op;
      int64_t bytes = 0, ns = 0;
      if (!(words >> threads >> op >> bytes >> ns) || threads < 1 || bytes < 0 || ns < 0)
        refuse(line, "threads, an op, its bytes and its ns");
      host.by_threads[threads].local_ns[op][bytes] = ns;
    } else if (kind == "work") {
      std::string shape;
      WorkTimes::Work work;
      if (!(words >> threads >> shape >> work.time_ns) || threads < 1 || work.time_ns < 0 || shape.size() != 16 ||
          shape.find_first_not_of("0123456789abcdef") != std::string::npos)
        refuse(line, "threads, 16 hexadecimal digits and a time in ns");
      words >> work.name;
      host.by_threads[threads].works[std::strtoull(shape.c_str(), nullptr, 16)] = work;
    } else {
      refuse(line, "cores, emulated_ns, verb, wait, rates, local or work as its first word");
    }
  }
  if (host.cores == 0 && !text.empty()) refuse("", "a row 'cores'");
  return host;
}

}  // namespace slipstream

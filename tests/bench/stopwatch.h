// SPDX-License-Identifier: Apache-2.0
#pragma once
// Interleaved medians: the contestants take turns, so that a busy neighbour disturbs them alike.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

namespace slipstream::bench {

inline double seconds_of(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Timing {
  double median_s = 0.0;
  double best_s = 0.0;
};

/// Runs every body once to warm up, then `rounds` times in turn.
inline std::vector<Timing> interleaved(int rounds, const std::vector<std::function<void()>>& bodies) {
  std::vector<std::vector<double>> times(bodies.size());
  for (const auto& body : bodies) body();
  for (int round = 0; round < rounds; ++round)
    for (size_t i = 0; i < bodies.size(); ++i) times[i].push_back(seconds_of(bodies[i]));
  std::vector<Timing> result;
  for (auto& series : times) {
    std::sort(series.begin(), series.end());
    result.push_back({series[series.size() / 2], series.front()});
  }
  return result;
}

}  // namespace slipstream::bench

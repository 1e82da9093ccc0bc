// SPDX-License-Identifier: Apache-2.0
#pragma once
// Times that `slipstream calibrate` measured on a host of CPUs, as a machine file keeps them.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/device/cost.h"

namespace slipstream {

/// Pure. The identity of a work for prices: all works with the same kernels, shapes, operations and bytes have it.
uint64_t shape_of(const Cost& cost);

/// Works of a rank with this many threads, while the ranks of the other cores compute as well.
struct WorkTimes {
  struct Work {
    int64_t time_ns = 0;
    std::string name;  // for readers of the file
  };
  std::unordered_map<uint64_t, Work> works;                    // by shape_of()
  std::map<std::string, std::map<int64_t, int64_t>> local_ns;  // by op, then bytes: updates, norms, copies
  double products_per_second = 0, scores_per_second = 0;       // flops of shapes that were not measured
  double bytes_per_second = 0;                                 // of memory-bound works that were not measured

  /// Pure. Between two measured sizes on a line; beyond them in proportion. -1: this op was not measured.
  int64_t local_time_ns(const std::string& op, int64_t bytes) const;
};

/// A verb among `ranks` ranks of the host, with a wake-up of the channel and of compute behind it.
struct VerbTimes {
  std::string verb;  // name_of(Op)
  int ranks = 2;
  int64_t latency_ns = 0;        // of the smallest message
  int64_t bytes_per_second = 0;  // of the bytes that a rank sends
  int64_t core_ns = 0;           // time of a core that the smallest message takes from each rank
  double core_ns_per_byte = 0;   // and a sent byte
};

/// More ranks than cores: a rank that is due waits for the time slice of another one.
struct CrowdedWait {
  int group = 2;        // ranks that meet
  int ranks = 4;        // of the host
  int64_t wait_ns = 0;  // of a group's ranks for each other, beyond their work and the verb
};

struct HostTimes {
  int cores = 0;
  int64_t emulated_ns = 0;  // of a transfer on an emulated link, beyond its latency and bytes
  std::map<int, WorkTimes> by_threads;
  std::vector<VerbTimes> verbs;
  std::vector<CrowdedWait> waits;

  /// Pure. The works of a rank with `threads` threads, or with the nearest number that was measured.
  const WorkTimes& at(int threads) const;
  /// Pure. The nearest measured group of this verb; null if there is none.
  const VerbTimes* verb(std::string_view name, int ranks) const;
  /// Pure. The wait of the nearest measured group if `ranks` ranks of `threads` threads share the cores; 0: they have
  /// cores of their own, or it was not measured.
  int64_t crowded_wait_ns(int group, int ranks, int threads) const;

  /// The rows of a machine file. parse() reads what text() writes.
  /// Throws: ConfigError "needs ..., got ..." for the first wrong row.
  std::string text() const;
  static HostTimes parse(const std::string& text);
};

}  // namespace slipstream

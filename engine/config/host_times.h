// SPDX-License-Identifier: Apache-2.0
#pragma once
// The times that `slipstream calibrate` measured on a host of CPUs, as a machine file keeps them.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/device/cost.h"

namespace slipstream {

/// Pure. Returns the identity of a work for prices. All works with the same kernels, shapes, operations and bytes have
/// the same one.
uint64_t shape_of(const Cost& cost);

/// The works of a rank with this many threads, measured while the ranks on the other cores compute as well.
struct WorkTimes {
  struct Work {
    int64_t time_ns = 0;
    std::string name;  // for readers of the file
  };
  std::unordered_map<uint64_t, Work> works;                    // by shape_of()
  std::map<std::string, std::map<int64_t, int64_t>> local_ns;  // by op, then bytes: updates, norms, copies
  double products_per_second = 0, scores_per_second = 0;       // flops of shapes that were not measured
  double bytes_per_second = 0;                                 // the rate of memory-bound works that were not measured

  /// Pure. Interpolates on a line between two measured sizes and in proportion beyond them. Returns -1 if this op was
  /// not measured.
  int64_t local_time_ns(const std::string& op, int64_t bytes) const;
};

/// A verb among `ranks` ranks of the host, including the wake-ups of the channel and, after the verb, of compute.
struct VerbTimes {
  std::string verb;  // name_of(Op)
  int ranks = 2;
  int64_t latency_ns = 0;        // the latency of the smallest message
  int64_t bytes_per_second = 0;  // the rate of the bytes that a rank sends
  int64_t core_ns = 0;           // the time of a core that the smallest message takes from each rank
  double core_ns_per_byte = 0;   // the same for each sent byte
};

/// The wait with more ranks than cores, where a rank that is due waits for the end of another rank's time slice.
struct CrowdedWait {
  int group = 2;        // the ranks that meet
  int ranks = 4;        // the ranks of the host
  int64_t wait_ns = 0;  // the time for which the ranks of a group wait for each other, beyond their work and the verb
};

struct HostTimes {
  int cores = 0;
  int64_t emulated_ns = 0;  // the time of a transfer on an emulated link, beyond its latency and bytes
  std::map<int, WorkTimes> by_threads;
  std::vector<VerbTimes> verbs;
  std::vector<CrowdedWait> waits;

  /// Pure. Returns the works of a rank with `threads` threads, or with the nearest number that was measured.
  const WorkTimes& at(int threads) const;
  /// Pure. Returns the nearest measured group of this verb, or null if there is none.
  const VerbTimes* verb(std::string_view name, int ranks) const;
  /// Pure. Returns the wait of the nearest measured group if `ranks` ranks of `threads` threads share the cores.
  /// Returns 0 if they have cores of their own, or if it was not measured.
  int64_t crowded_wait_ns(int group, int ranks, int threads) const;

  /// Returns the rows of a machine file, which parse() reads. Throws: ConfigError "needs ..., got ..." for the first
  /// wrong row.
  std::string text() const;
  static HostTimes parse(const std::string& text);
};

}  // namespace slipstream

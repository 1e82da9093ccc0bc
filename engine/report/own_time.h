// SPDX-License-Identifier: Apache-2.0
#pragma once
// The time that each rank spends by itself in a step, by cause. Waits for other ranks and for cores do not count.
//
//    compute  works on compute and local channels
//    link     transfers of this rank's bytes, from when the last member of the group has entered
//    input    staging of the next batch, including its wait for the loader
//    host     compute has no work and waits for no event although a core was free; a thread sleeps inside a work
//    core     the threads of compute and of the host were ready and had no core
//
// Stages of a pipeline have different works. So items are compared by kind: the same op of the same size.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/report/critical_path.h"

namespace slipstream {

enum class Cause : uint8_t { compute, link, input, host, core };
constexpr size_t kCauses = 5;
/// Returns "compute" and so on; "host" for both host and core.
const char* name_of(Cause cause);

constexpr uint32_t kNoItem = UINT32_MAX;

/// The kinds of items in all ranks' training plans.
struct OwnKinds {
  struct OfRank {
    std::vector<uint32_t> kinds;     // those on this rank, as numbers that all ranks share
    std::vector<uint32_t> of_items;  // by item: the position of its kind in `kinds`
    std::vector<int64_t> counts;     // by position: the number of items
  };
  std::vector<Cause> causes;  // by kind: compute, link or input
  std::vector<OfRank> ranks;

  /// Adds a rank. `texts[i]` is equal for items of the same kind on all ranks.
  void add(const std::vector<std::string>& texts, const std::vector<Cause>& item_causes);

 private:
  std::vector<std::string> texts_;  // by kind
};

/// The times of one rank in one step.
struct OwnTimes {
  std::vector<int64_t> kind_ns;  // by position in OwnKinds::OfRank::kinds
  int64_t host_ns = 0;
  int64_t core_ns = 0;
  int64_t stopped_ns = 0;  // the process was stopped in this step or a few steps before; part of `host`
  int64_t waited_ns = 0;   // compute waited for communication or input
  /// By cause: the item that exceeded its fastest time most.
  std::array<uint32_t, kCauses> latest = {kNoItem, kNoItem, kNoItem, kNoItem, kNoItem};
};

/// Pure. Returns all times except those of links. `host_ready_ns` is the time for which the host's thread waited for a
/// core before it issued the step. `fastest_ns` is by item; negative: not known.
OwnTimes own_times(const StepTimes& times, const OwnKinds& kinds, int rank, int64_t host_ready_ns,
                   const std::vector<int64_t>& fastest_ns);

/// Adds the times of links in a step. The tasks in `times[r]` are on a clock that all ranks share.
void add_links(std::vector<OwnTimes>& own, const std::vector<RankStep>& times, const OwnKinds& kinds);

/// The numbers of a step for the detector, in milliseconds.
struct OwnSample {
  struct OfRank {
    std::array<double, kCauses> own = {};  // by cause
    /// By cause: `own` less (the median of other ranks' items of the same kinds) x (their number); items that no other
    /// rank has count as 0.
    std::array<double, kCauses> beyond = {};
    double waited = 0;
    double stopped = 0;  // part of `host`
    std::array<uint32_t, kCauses> latest = {};
  };
  int64_t step = 0;
  double step_ms = 0;
  std::vector<OfRank> ranks;
};

/// Pure.
OwnSample sample_of(int64_t step, double step_ms, const std::vector<OwnTimes>& own, const OwnKinds& kinds);

}  // namespace slipstream

// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds the rank and the task that stop a run, from the flight records of its ranks.

#include <string>
#include <vector>

#include "comm/flight.h"

namespace slipstream::comm {

/// A rank with an alarm leaves if rank 0 has not judged within this time.
constexpr int64_t kVerdictMs = 3000;

struct Verdict {
  enum class Kind {
    ended,       // the process of a rank is gone
    silent,      // a rank does not answer
    behind,      // a rank that waits for no other has not begun a work in which others wait
    mismatched,  // ranks of one group are in different works
    circular,    // ranks wait for each other in works of different channels
    slow,        // all members are in the same work
    waiting,     // no rank waits in a known work
  };
  Kind kind = Kind::waiting;
  std::vector<int> ranks;  // that the run waits for; with `slow` all members, with `waiting` none
  std::string sentence;    // what is wrong, with the numbers, and what to do
};

/// Pure. The verdict on the records of one run. There is at least one record, and at most one per rank. A rank without
/// a record did not answer, or lost rank 0; then `last_heard` of rank 0 describes it. Late answers are not used: a
/// record that was written after another record has listed its rank in `last_heard`, and a record of rank 0 that was
/// written more than kVerdictMs after an alarm.
Verdict judge(const std::vector<FlightRecord>& records);

/// Pure. One line per rank: its phase, and the work in which it has waited longest.
std::string flight_lines(const std::vector<FlightRecord>& records);

}  // namespace slipstream::comm

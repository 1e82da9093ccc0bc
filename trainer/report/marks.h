// SPDX-License-Identifier: Apache-2.0
#pragma once
// Events of a run: checkpoints, skipped updates, stalls, stragglers, faults and relaunches.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/report/lines.h"
#include "trainer/report/metrics_table.h"

namespace slipstream::report {

struct Mark {
  enum class Kind : uint8_t { checkpoint, skipped, straggler, stall, fault, relaunch, other };
  Kind kind = Kind::other;
  std::optional<int64_t> step;  // none: the step is not known
  std::string time;             // as the file writes it
  std::string text;
};
const char* name_of(Mark::Kind kind);

/// The largest number of marks on a page. Further marks are only counted.
constexpr size_t kMostMarks = 1000;

/// Blocks. Reads the checkpoints in `checkpoint_dir`, flight/, stragglers.jsonl and the events of slipstream-run
/// (FOLDER.events.jsonl), each of which is optional. The marks are ordered by step.
std::vector<Mark> read_marks(const std::string& folder, const std::string& checkpoint_dir, const MetricsTable& metrics,
                             Missing& missing);

}  // namespace slipstream::report

// SPDX-License-Identifier: Apache-2.0
#pragma once
// The spans of some traced steps of all ranks, from trace/rank*.json.

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/report/lines.h"

namespace slipstream::report {

/// What spans with the same name have in common.
struct SpanName {
  enum class Kind : uint8_t { kernel, communication, wait };
  std::string name;       // "mlp.0/1/matmul"
  std::string item;       // the item of the plan: "mlp.0/1"
  std::string awaited;    // for a wait
  std::string op, dtype;  // for communication
  std::string awaited_channel;
  Kind kind = Kind::kernel;
  int64_t flops = 0, bytes = 0;  // -1: the trace has none
  int64_t group_size = 0;

  /// Returns "matmul".
  std::string work() const;
  bool operator==(const SpanName&) const = default;
};

struct TraceSpan {
  uint32_t name = 0;  // an index into Trace::names
  int32_t channel = 0;
  int64_t step = 0;
  int64_t begin_ns = 0;  // on the clock of the rank's host
  int64_t duration_ns = 0;
};

struct RankTrace {
  int rank = 0;
  std::vector<std::string> channels;  // by id
  std::vector<TraceSpan> spans;       // sorted by their begin
};

struct Trace {
  std::vector<SpanName> names;
  std::vector<RankTrace> ranks;  // by rank
  std::vector<int64_t> steps;    // the steps that were read, ascending
  int64_t traced_steps = 0;      // the steps in the files
  int64_t files = 0;             // one for each rank
  std::string damage;            // a sentence about the first file that is not complete; empty: all are
};

/// The largest number of spans on a page. More would take too long to read and to draw.
constexpr size_t kMostSpans = 40'000;

/// The largest number of files of a trace that are read.
constexpr int64_t kMostTraceFiles = 4096;

/// Blocks. Reads at most five steps from the middle of the traced ones, and at most `spans_max` spans. With more spans
/// it reads fewer steps, and if one step of all ranks has too many, only the first ranks.
Trace read_trace(const std::string& folder, size_t spans_max, Missing& missing);

}  // namespace slipstream::report

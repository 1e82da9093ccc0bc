// SPDX-License-Identifier: Apache-2.0
#pragma once
// A timeline of one rank in the Chrome trace format, one row per stream, which Perfetto and other trace tools can read.
// Source: "Trace Event Format", the JSON that chrome://tracing and ui.perfetto.dev read.

#include <cstdio>
#include <string>
#include <vector>

#include "engine/device/device.h"
#include "engine/plan/job.h"

namespace slipstream {

/// Collects the spans of the steps `first_step` to `last_step` and writes them once.
class TraceWriter {
 public:
  /// finish() writes the file at `path`. Borrows `job`.
  TraceWriter(const Job& job, int rank, int64_t first_step, int64_t last_step, std::string path);
  void add(ChannelId channel, const std::vector<Span>& spans);
  /// Blocks. Writes what add() has received. Later calls have no effect. If there is no span, an existing file stays.
  /// The file appears complete or not at all. Throws: ResourceError if the file cannot be written.
  void finish();
  bool wants(int64_t step) const { return step >= first_ && step <= last_; }

 private:
  void write_event(std::FILE* file, ChannelId channel, const Span& span) const;

  const Job& job_;
  int rank_;
  int64_t first_, last_;
  std::string path_;
  std::vector<std::vector<Span>> spans_;  // by channel
  bool finished_ = false;
};

}  // namespace slipstream
